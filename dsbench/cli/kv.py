"""`dsbench kv`: from bytes of KV memory to blocks, tokens and concurrency."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from dsbench import published
from dsbench.cli.params import SHAPE_NAMES, byte_size, ratios, shape
from dsbench.errors import InputError
from impl.dims import FLASH, Dims
from impl.kv_geometry import BUCKETS, RULES, Capacity, KvGeometry, Rule

GIB = 2**30


@click.command(short_help="Turn KV bytes into blocks, tokens and concurrency.")
@click.argument("available", metavar="[BYTES]", type=byte_size, required=False)
@click.option("--dims", metavar=SHAPE_NAMES, type=shape, default="flash", show_default=True, help="Model shape.")
@click.option(
    "--ratios",
    "layer_ratios",
    metavar="R,R,...",
    type=ratios,
    help="Compression ratios, one a target layer, in place of the shape's.",
)
@click.option("--draft-layers", type=click.IntRange(0, 1000), help="Draft layers, in place of the shape's.")
@click.option(
    "-T", "--max-num-batched-tokens", "batched", type=click.IntRange(min=1), help="Tokens one step may process."
)
@click.option("--max-model-len", type=click.IntRange(min=1), help="Longest request in tokens.")
@click.option(
    "--rule", type=click.Choice(RULES), help="Engine version whose rule counts. [default: 0.26.0; source table: 0.25.1]"
)
@click.option(
    "--concurrent-batches",
    type=click.IntRange(min=1),
    help="Batches in flight, where the rule counts them. [default: 2]",
)
@click.option("--published-table", "source_table", is_flag=True, help="The source document's seven rows, computed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kv(
    available: int | None,
    dims: Dims,
    layer_ratios: tuple[int, ...] | None,
    draft_layers: int | None,
    batched: int | None,
    max_model_len: int | None,
    rule: Rule | None,
    concurrent_batches: int | None,
    source_table: bool,
    as_json: bool,
) -> None:
    """Turn KV bytes into blocks, tokens and concurrency.

    BYTES is what the engine reports as available KV memory: 63586506240 or 10.54GiB. Without it, the page sizes and
    the cost of one request are printed. Only the bytes are a measurement; tokens and concurrency follow from the
    page geometry, the limits and the version's rule.
    """
    batched = dims.max_num_batched_tokens if batched is None else batched
    max_model_len = dims.max_model_len if max_model_len is None else max_model_len
    try:
        if source_table:
            if available is not None or layer_ratios or draft_layers is not None or dims is not FLASH:
                raise InputError("--published-table is of the flash shape: leave out BYTES, --dims and --ratios")
            rows = published.rows(batched, max_model_len, rule or published.SOURCE_RULE, concurrent_batches)
            _print_published(rows, as_json)
            return
        if layer_ratios:
            dims = dims.with_changes(name=f"{dims.name} with ratios", compress_ratios=layer_ratios, aux_layers=())
        geometry = KvGeometry.of(dims, draft_layers)
        capacity = geometry.capacity(available or 0, batched, max_model_len, rule or "0.26.0", concurrent_batches)
    except ValueError as error:
        raise InputError(str(error)) from None
    _print_capacity(geometry, capacity, available is not None, as_json)


def _print_capacity(geometry: KvGeometry, capacity: Capacity, has_bytes: bool, as_json: bool) -> None:
    from dsbench.cli.table import cell_text, print_json, print_note, print_table

    if as_json:
        print_json(_to_json(geometry, capacity, has_bytes))
        return
    layers = {kind: sum(page.kind == kind for page in geometry.pages) for kind in geometry.formats}
    click.echo(
        f"{geometry.dims.name}: {geometry.dims.n_layers} target and {geometry.n_draft_layers} draft layers, "
        f"blocks of {geometry.dims.block_tokens} tokens\n"
    )
    print_table(
        "Pages",
        ("page", "layers", "rows", "B a row", "content B", "aligned B", "stored B", "tokens"),
        [
            (kind, layers[kind], f.rows, f.row_bytes, f.content_bytes, f.aligned_bytes, f.page_bytes, f.tokens)
            for kind, f in geometry.formats.items()
        ],
    )
    print_table(
        "Blocks one request of the longest length needs",
        ("group", "layers", "tokens a block", "blocks"),
        [
            (
                group.name,
                len({page.layer for page in group.pages}),
                group.tokens,
                group.blocks(capacity.in_flight_tokens, capacity.max_model_len),
            )
            for group in geometry.groups
        ],
    )
    facts: list[tuple[str, str]] = [
        ("rule", f"{capacity.rule}, {capacity.in_flight_tokens:,} tokens in flight"),
        ("block, B", f"{capacity.block_bytes:,} B"),
        ("blocks a longest request, R", f"{capacity.blocks_per_max_request:,} of {capacity.max_model_len:,} tokens"),
        ("one more token in a request", f"{geometry.marginal_bytes_per_token(capacity.rule):,.1f} B"),
        ("one more reported token", f"{capacity.reported_bytes_per_token:,.1f} B"),
    ]
    if has_bytes:
        facts += [
            ("available", f"{capacity.available_bytes:,} B, {capacity.available_bytes / GIB:.2f} GiB"),
            ("KV blocks, n", cell_text(capacity.blocks)),
            ("KV tokens", cell_text(capacity.tokens)),
            ("max concurrency", f"{capacity.max_concurrency:.2f}x"),
        ]
    for name, value in facts:
        print_note(f"{name:<28} {value}", 29)


def _to_json(geometry: KvGeometry, capacity: Capacity, has_bytes: bool) -> dict[str, Any]:
    sizes = {
        kind: {**dataclasses.asdict(f), "content_bytes": f.content_bytes, "aligned_bytes": f.aligned_bytes}
        for kind, f in geometry.formats.items()
    }
    content: dict[str, Any] = {
        "shape": geometry.dims.name,
        "draft_layers": geometry.n_draft_layers,
        "pages": sizes,
        "slots": {bucket: geometry.slots(bucket) for bucket in BUCKETS},
        "groups": [
            {
                "name": group.name,
                "layers": len({page.layer for page in group.pages}),
                "tokens": group.tokens,
                "blocks": group.blocks(capacity.in_flight_tokens, capacity.max_model_len),
            }
            for group in geometry.groups
        ],
        "full_page_bytes": geometry.full_page_bytes,
        "marginal_bytes_per_token": geometry.marginal_bytes_per_token(capacity.rule),
        "content_bytes_per_token": geometry.content_bytes_per_token,
        **dataclasses.asdict(capacity),
    }
    if not has_bytes:
        content |= dict.fromkeys(("available_bytes", "blocks", "tokens", "max_concurrency"))
    return content


def _print_published(rows: list[published.Row], as_json: bool) -> None:
    from dsbench.cli.table import print_json, print_note, print_table

    if as_json:
        print_json(
            [
                {
                    "state": row.state,
                    **dataclasses.asdict(row.capacity),
                    "used_bytes": row.capacity.used_bytes,
                    "step_bytes": row.step_bytes,
                    "size_model_blocks": row.modelled.blocks,
                    "size_model_tokens": row.modelled.tokens,
                    "size_model_block_distance": row.block_distance,
                    "size_model_token_distance": row.token_distance,
                }
                for row in rows
            ]
        )
        return
    first = rows[0].capacity
    print_table(
        f"Source table at {first.max_model_len:,} tokens a request, {first.in_flight_tokens:,} in flight, {first.rule}",
        (
            "state",
            "blocks",
            "GiB in blocks",
            "KV tokens",
            "concurrency",
            "step MiB",
            "size model",
            "blocks off",
            "tokens off",
        ),
        [
            (
                row.state,
                row.capacity.blocks,
                f"{row.capacity.used_bytes / GIB:.3f}",
                row.capacity.tokens,
                f"{row.capacity.max_concurrency:.2f}x",
                row.step_bytes // 2**20,
                row.modelled.blocks,
                row.block_distance,
                row.token_distance,
            )
            for row in rows
        ],
    )
    print_note(
        f"{first.block_bytes:,} B a block, {first.blocks_per_max_request:,} blocks a longest request. "
        "Size model: the first row's blocks plus exactly the bytes of each change's buffer; off = size model less row."
    )
