"""Reads Prometheus' text with the parser of its Python client, and compares it with the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.monitoring.catalogue import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str, *, pools: bool = False) -> Samples:
    """Return the samples by name and labels, with the label `pool` on request; checks each against the catalogue."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith("orc_"):
            assert name.startswith("process_"), name
            continue
        metric = BY_NAME[name]
        assert (family.type, family.documentation) == (metric.type, metric.help), name
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("prefix"), sample
            pool = labels.pop("pool")
            assert pool or pools, sample
            assert sample.name.removeprefix(name) in {"", "_bucket", "_sum", "_count"}, sample
            assert set(labels) - {"le"} == set(metric.labels), sample
            if metric.values:
                assert labels[metric.labels[-1]] in metric.values, sample
            key = sample.name, frozenset((labels | {"pool": pool} if pools else labels).items())
            assert key not in found, sample
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, /, **labels: str) -> float:
    """Return one sample."""
    return samples[name, frozenset(labels.items())]


def label_values(samples: Samples, label: str) -> set[str]:
    """Return all values of a label."""
    return {dict(labels)[label] for _, labels in samples if label in dict(labels)}


def names(samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> set[str]:
    """Return the names of the declared metrics that have samples."""
    ends = ("_bucket", "_sum", "_count")
    plain = {name for name, _ in samples}
    return {next((name.removesuffix(end) for end in ends if name.endswith(end)), name) for name in plain}
