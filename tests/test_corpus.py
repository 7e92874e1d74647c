"""The acceptance corpus: each field case and each conformance family is named by the test that shows it, in its name,
its docstring or the id of a parameter. A case that no test names stands below with the reason."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent

FIELD_CASES = """
F001 F003 F004 F005 F006 F007 F009 F010 F012 F013 F014 F015 F016 F018 F019 F021 F022 F023 F024 F030 F032 F033
F034 F036 F037 F038 F039 F040 F041 F042 F044 F045 F050 F051 F053 F054 F056 F057 F058 F059 F060 F061 F064 F070
F071 F072 F075 F076 F077 F078 F079 F081 F082 F083 F084 F087 F090 F091 F092 F093 F094 F100 F101 F103 F104 F106
F107 F110 F111 F112 F113 F114 F120 F121 F122 F124 F125 F126 F127 F128 F130 F131 F132 F133 F134 F135 F137 F138
F139 F140 F142 F143 F144 F145 F146 F147 F148 F150 F151 F152 F155 F157 F158 F159 F161 F170 F172 F173 F175 F176
F177 F178 F180 F181 F190 F191 F193 F194 F195 F196 F198 F199 F200 F210 F211 F213 F214 F215 F220 F221 F222 F223
F224 F225 F226 F227 F228 F230 F231 F232 F240 F241 F242 F243 F244 F246 F250 F251 F252 F253 F254 F255 F256 F257
F259 F260 F261 F262 F263 F271 F272 F273 F275 F276 F277 F278 F279 F290 F291 F292 F294 F295 F297 F298 F300 F301
F302 F303 F305 F307 F308 F309
"""

FAMILIES = """
FS-01 FS-02 FS-03 FS-04 FS-05 FS-07 FS-08 FS-09 FS-12 FS-13 FS-14 FS-15 FS-16 FS-17 FS-18 FS-19 FS-22 FS-23
FS-25 FS-26 FS-27 FS-28 FS-29 FS-30 FS-31 FS-32 FS-33 FS-34 FS-35 FS-37 FS-39 FS-40 FS-41 FS-42 FS-43 FS-44
FS-45 RD-01 RD-03 RD-05 RD-06 RD-07 RD-08 RD-10 RD-11 RD-12 PR-01 PR-02 PR-03 PR-05 PR-06 PR-07 PR-09 PR-10
PR-11 PR-13 PR-14 PR-15 PR-16 PR-17 PR-19 PR-20 PR-21 PR-22 PR-23 PR-24 IP-01 IP-02 IP-03 IP-04 IP-05 IP-06
IP-07 IP-08 IP-09 IP-10 NW-01 NW-02 NW-04 NW-05 NW-06 NW-08 NW-09 NW-10 NW-11 NW-13 NW-14 NW-15 NW-16 NW-17
NW-19 NW-20 NW-21 NW-22 NW-23 NW-24 NW-26 NW-27 NW-28 NW-30 NW-31 PD-01 PD-03 PD-04 PD-05 PD-06 PD-08 PD-09
PD-10 PD-12 PD-14 PD-15 PD-16 PD-18 PD-19 PD-20 PD-21 PD-22 PD-23 PD-24 PD-25 PD-26 PD-27 PD-28
"""

NOT_SHOWN = {
    "PD-06": "a policy that demands layers is in no interface; a layer that is missing is in every result",
    "PD-20": "settings of other programs are not imported",
}


def named() -> set[str]:
    files = (path for path in TESTS.rglob("*.py") if path != Path(__file__))
    text = "\n".join(path.read_text() for path in files).upper().replace("_", "-")
    return set(re.findall(r"(?<![A-Z0-9])(?:F\d{3}|[A-Z]{2}-\d\d)(?![0-9])", text))


def test_every_case_is_named_by_a_test_or_has_a_reason() -> None:
    corpus = {*FIELD_CASES.split(), *FAMILIES.split()}
    assert sorted(corpus - named() - NOT_SHOWN.keys()) == []


def test_the_reasons_are_for_cases_that_nothing_shows() -> None:
    assert sorted(NOT_SHOWN.keys() & named()) == []
