"""The report as one HTML page that needs nothing else: the verdict, each test with its limits, and the worst examples."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from serving.core.errors import ConfigurationError
from serving.gate.report import Compared, GateReport, Likely, WorstAnswer, WorstPassage
from serving.gate.text import WORDS, figures
from serving.gate.verdict import Finding, Verdict

STYLE = Path(__file__).with_name("page.css")
_SHOWN_PASSAGES = 12
_GAUGE = 170, 24
_FULL_HEAT = 0.85


def write_page(report: GateReport, path: Path) -> None:
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from None


def page(report: GateReport) -> str:
    """The whole page."""
    verdict = report.verdict
    style = STYLE.read_text(encoding="utf-8")
    parts = [
        f"<h1>{escape(report.candidate.model)}, {escape(report.weights_format)} on {escape(report.target)}</h1>",
        f'<p class="dim">{escape(report.candidate.url)} · vLLM {escape(report.candidate.version or "of an unknown version")} · '
        f"{escape(verdict.created)} · rules {escape(verdict.rules)}</p>",
        f'<div class="verdict {verdict.outcome}"><b class="{verdict.outcome}">{WORDS[verdict.outcome]}</b>'
        f"<p>{escape(verdict.reason)}</p></div>",
        _calibration(verdict),
        "<h2>Tests</h2>",
        _findings(verdict.findings),
        '<div class="columns">',
        _list("What a pass here would mean", verdict.sees),
        _list("What this run cannot see", verdict.blind),
        "</div>",
        _worst(report),
        *(_compared(compared) for compared in report.compared),
        _tied(verdict),
        _cost(verdict),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{WORDS[verdict.outcome]} · {escape(report.candidate.model)}</title><style>{style}</style>"
        f"</head><body>{''.join(parts)}</body></html>\n"
    )


def _calibration(verdict: Verdict) -> str:
    if verdict.calibrated:
        return ""
    return (
        "<p><b>Uncalibrated.</b> No floor was ever measured on this target, so that nothing passes here: the outcome is fail or "
        "not decided, and a person may approve what is not decided.</p>"
    )


def _findings(findings: Sequence[Finding]) -> str:
    rows = "".join(
        f'<tr><td class="name">{escape(finding.name)}</td><td class="{finding.outcome}">{WORDS[finding.outcome].lower()}</td>'
        f'<td class="figures">{_gauge(finding)}</td><td class="said">{escape(finding.said)}</td></tr>'
        for finding in findings
    )
    head = "<tr><th>test</th><th></th><th>figure between its limits</th><th>what was found</th></tr>"
    return f'<table class="findings">{head}{rows}</table>'


def _gauge(finding: Finding) -> str:
    """The figure with its interval on the bands of pass, not decided and fail; a square root scale, so that small ones show."""
    value, passes, fails = finding.value, finding.pass_limit, finding.fail_limit
    if value is None or passes is None or fails is None or finding.low is None or finding.high is None or fails <= 0:
        return ""
    width, height = _GAUGE
    most = max(fails * 1.6, finding.high * 1.1)

    def x(figure: float) -> float:
        return float(width * (max(0.0, figure) / most) ** 0.5)

    zones = [("passes", 0.0, x(passes)), ("open", x(passes), x(fails)), ("fails", x(fails), float(width))]
    drawn = "".join(
        f'<rect class="{name}" x="{left:.1f}" y="7" width="{max(0.0, right - left):.1f}" height="10"/>'
        for name, left, right in zones
    )
    return (
        f'<svg class="gauge" viewBox="0 0 {width} {height}" role="img" aria-label="{value:.4g}; passes to {passes:.4g}, fails '
        f'above {fails:.4g}">{drawn}<line class="span" x1="{x(finding.low):.1f}" x2="{x(finding.high):.1f}" y1="12" y2="12"/>'
        f'<circle class="dot" cx="{min(x(value), width - 4):.1f}" cy="12" r="4"/></svg>'
    )


def _list(title: str, lines: Sequence[str]) -> str:
    entries = "".join(f"<li>{escape(line)}</li>" for line in lines) or '<li class="dim">nothing</li>'
    return f"<div><h2>{title}</h2><ul>{entries}</ul></div>"


def _compared(compared: Compared) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="figure">{escape(value)}</td></tr>' for name, value in figures(compared)
    )
    return (
        f"<h2>Against the {escape(compared.role)}</h2>"
        f'<p class="dim">{escape(compared.engine.model)} at {escape(compared.engine.url)}, vLLM '
        f"{escape(compared.engine.version or 'unknown')}, collected {escape(compared.created)}</p>"
        f'<div class="columns"><div><table>{rows}</table></div>{_bars(compared)}</div>'
    )


def _bars(compared: Compared) -> str:
    ranked = sorted(compared.kl_by_passage.items(), key=lambda pair: -pair[1])[:_SHOWN_PASSAGES]
    if not ranked:
        return ""
    most = ranked[0][1] or 1.0
    rows = "".join(
        f'<span>{escape(name)}</span><i style="width:{100 * value / most:.1f}%"></i><span>{value:.4f}</span>'
        for name, value in ranked
    )
    return f'<div><h3>Mean KL by passage, the worst of {len(compared.kl_by_passage)}</h3><div class="bars">{rows}</div></div>'


def _worst(report: GateReport) -> str:
    if report.without_prompts:
        return "<h2>Worst examples</h2><p>Texts were left out on request.</p>"
    if not report.worst_passages and not report.worst_answers:
        return ""
    parts = [f"<h2>Worst examples, against the {escape(report.worst_against or 'reference')}</h2>"]
    if report.worst_passages:
        parts.append("<p>The redder a token, the farther apart the two engines are on it.</p>")
        parts += [_passage(passage) for passage in report.worst_passages]
    if report.worst_answers:
        parts.append("<h3>Answers that only the reference gets right</h3>")
        parts += [_answer(answer) for answer in report.worst_answers]
    return "".join(parts)


def _passage(passage: WorstPassage) -> str:
    most = max(passage.kl_by_token, default=0.0) or 1.0
    text = "".join(_token(token, kl, most) for token, kl in zip(passage.text, passage.kl_by_token, strict=True))
    rows = "".join(
        f'<tr><td class="figure">{worst.kl:.3f}</td><td><code>{escape(worst.before)}</code></td>'
        f"<td>{_likely(worst.reference)}</td><td>{_likely(worst.candidate)}</td></tr>"
        for worst in passage.worst
    )
    head = "<tr><th>KL</th><th>behind</th><th>the reference expects</th><th>the candidate expects</th></tr>"
    return (
        f"<h3>{escape(passage.name)}: mean KL {passage.mean_kl:.4f} over {passage.tokens} tokens</h3>"
        f'<div class="text">{text}</div><div class="scroll"><table>{head}{rows}</table></div>'
    )


def _token(token: str, kl: float, most: float) -> str:
    heat = _FULL_HEAT * (kl / most) ** 0.5
    style = f' style="background:rgba(var(--heat),{heat:.2f})" title="KL {kl:.4f}"' if heat > 0.03 else ""
    return f"<span{style}>{escape(token)}</span>"


def _likely(tokens: Sequence[Likely]) -> str:
    return "<br>".join(f"<code>{escape(repr(token.text))}</code> {token.probability:.1%}" for token in tokens)


def _answer(answer: WorstAnswer) -> str:
    return (
        f'<div class="answers"><div class="question"><small>{escape(answer.name)}: the candidate\'s {escape(answer.said)}</small>'
        f"<pre>{escape(answer.prompt or '(left out)')}</pre></div>"
        f"<div><small>reference</small><pre>{escape(answer.reference or '')}</pre></div>"
        f"<div><small>candidate</small><pre>{escape(answer.candidate or '')}</pre></div></div>"
    )


def _tied(verdict: Verdict) -> str:
    configuration = verdict.configuration
    lines = [
        ("digest", verdict.digest),
        ("image", configuration.image),
        ("checkpoint", configuration.checkpoint),
        ("target", configuration.target),
        ("command", " ".join(configuration.argv) or "unknown"),
        ("environment", " ".join(f"{name}={value}" for name, value in sorted(configuration.environment.items())) or "none"),
        ("corpus", verdict.corpus),
    ]
    rows = "".join(f'<tr><td class="name">{name}</td><td><code>{escape(value)}</code></td></tr>' for name, value in lines)
    return f"<h2>What the verdict is tied to</h2><p>Other flags need a new verdict.</p><table>{rows}</table>"


def _cost(verdict: Verdict) -> str:
    cost = verdict.cost
    memory = (
        f"{cost.peak_engine_bytes / 1e9:.2f} GB ({cost.peak_engine_said})" if cost.peak_engine_bytes else cost.peak_engine_said
    )
    return (
        f"<h2>What it cost</h2><p>{cost.requests} requests, {cost.prompt_tokens:,} prompt tokens, {cost.output_tokens:,} output "
        f"tokens, {cost.seconds:.0f} seconds. At most {cost.most_tokens_at_once} tokens were scored at once. Engine's peak "
        f"memory: {escape(memory)}.</p>"
    )
