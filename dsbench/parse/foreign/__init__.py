"""Result files of other programs, one module a program. What a file does not hold stays None, never a guess."""
