#!/usr/bin/env python3
"""The figures that crates/lab/src/statistics/tests.rs expects, from numpy and scipy.

It shares no code with the crate. Its output was copied into the tests:

    python3 -m venv venv && venv/bin/pip install numpy==2.4.6 scipy==1.17.1
    venv/bin/python tests/statistics/reference.py
"""

import numpy as np
from scipy import stats

TIMES = [1.02, 0.98, 1.10, 1.01, 0.97, 1.30, 0.99, 1.00, 1.03, 0.96]
A = [10.0, 11.0, 10.5, 9.8, 10.2]
B = [10.4, 11.6, 10.6, 10.4, 10.5]
MANY_A = [10.0, 11.0, 10.5, 9.8, 10.2, 10.1, 10.9, 9.9, 10.3, 10.7, 10.4, 9.7, 10.6, 10.8, 11.1, 9.6]
MANY_B = [10.4, 11.6, 10.6, 10.4, 10.5, 10.8, 11.0, 10.6, 10.2, 11.3, 11.1, 9.9, 10.9, 11.5, 11.4, 10.3]


def expanded_bootstrap(samples, confidence, resamples):
    n = len(samples)
    tail = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.5 + confidence / 2, n - 1))
    drawn = np.random.default_rng(1).choice(samples, (resamples, n))
    return np.quantile(np.median(drawn, axis=1), [tail, 1 - tail], method="inverted_cdf")


def student(a, b, confidence):
    logs = np.log(np.array(b) / np.array(a))
    result = stats.ttest_1samp(logs, 0).confidence_interval(confidence)
    return np.exp([np.median(logs), result.low, result.high])


def signed_rank(a, b, confidence):
    """The ratios that scipy's exact Wilcoxon test just does not reject, by inverting the test."""
    logs = np.log(np.array(b) / np.array(a))

    def p(shift):
        return stats.wilcoxon(logs - shift, method="exact").pvalue

    means = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))
    alpha = 1 - confidence
    kept = [m for i, m in enumerate(means) if p(m + 1e-9) > alpha and p(m - 1e-9) > alpha]
    # A mean is an end of the interval where the test rejects on its one side and accepts on its
    # other.
    low = next(m for m in means if p(m + 1e-9) > alpha)
    high = next(m for m in reversed(means) if p(m - 1e-9) > alpha)
    assert low <= min(kept) and max(kept) <= high
    return np.exp([np.median(logs), low, high])


def modified_z(samples):
    samples = np.array(samples)
    return stats.norm.ppf(0.75) * (samples - np.median(samples)) / stats.median_abs_deviation(samples)


def show(name, values):
    print(f"{name}:", ", ".join(f"{float(value):.9f}" for value in values))


show("median of TIMES", [np.median(TIMES)])
for confidence in (0.8, 0.95):
    show(f"expanded bootstrap of TIMES, {confidence}", expanded_bootstrap(TIMES, confidence, 1_000_000))
many = stats.norm.ppf((np.arange(1, 102) - 0.5) / 101)
show("expanded bootstrap of 101 normal scores, 0.95", expanded_bootstrap(many, 0.95, 200_000))
for confidence in (0.95, 0.99):
    show(f"student ratio of 5 pairs, {confidence}", student(A, B, confidence))
for confidence in (0.95, 0.99, 0.999):
    show(f"signed-rank ratio of 16 pairs, {confidence}", signed_rank(MANY_A, MANY_B, confidence))
show("t quantiles 0.9993, df 1 4 9", stats.t.ppf(0.9993, [1, 4, 9]))
show("modified z of TIMES", modified_z(TIMES))
