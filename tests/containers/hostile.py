"""Strings that break careless programs, by table and by chance."""

from __future__ import annotations

from hypothesis import strategies as st

TABLE = (
    *("", " ", "  two  spaces  ", "it's", 'say "hi"', "'", '"', "\\", "\\\\", "\\n", "a\\", "`id`", "$(id)"),
    *("$((1+1))", "$HOME", "${HOME}", "$", "$$", "a$b", "%s", "%%", "%n%d", "a,b", ",", ",,", "a:b", ":"),
    *(":ro", "a:b:c", "a=b", "=", "==", "A=1,B=2", "-", "--", "-rf", "--env=X=1", "--privileged", "-v/:/host"),
    *("*", "?", "[a]", "~", "~root", "!", "!!", "#", "# x", ";", "; id", "&", "&&", "|", "||", "<", ">"),
    *("<(id)", ">(id)", "(", ")", "{a,b}", "{", "}", "é", "漢字", "🦊", "\u00a0", "\u200b", "\u202e", "\ufeff"),
    *("a\u0301", "ß", "İ", "ﬀ", "\U0010ffff", "true", "null", "1.10", "1e3", "0x10", "no"),
    *("24:00:00", "None", "NaN", "@file", "@/etc/passwd", "file://x", "//x", "..", "../..", "./x", "C:\\x"),
    *("\\\\host\\x", "a/b", "type=bind,source=/,target=/host", '"a","b"', '""', "''", "$''", '$"x"', "\\$(id)"),
    *("'$(id)'", '"$(id)"', "`'`", "\\`", "a b'c\"d$e`f\\g", "${IFS}id", "$@", "$*", "$1", "$?", "$!"),
    *("x" * 1000, "é'\"$(id)`,:=\\ " * 40, "{{.Config}}", "{% x %}", "<xml>&amp;", "'; DROP TABLE x; --"),
    *("$(cat /etc/x)",),
)

_PIECES = ("$(id)", "`id`", "'", '"', "\\", "$HOME", "${x}", "&", ";", "|", "*", "~", " ", "-", ",", ":", "=", "é", "#")
TEXT = st.one_of(
    st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), max_size=60),
    st.lists(st.sampled_from(_PIECES), max_size=12).map("".join),
    st.sampled_from(TABLE),
)
LONG = ("é'\"$(id)`, \\=:" * 8000)[:100_000]
"""More than 100 KB in UTF-8."""

VALUES = {f"V{index}": text for index, text in enumerate(TABLE)}
"""Every text of the table, as a variable's value."""
