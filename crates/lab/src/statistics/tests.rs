//! Tests against results of numpy and scipy, against many simulated comparisons, and against
//! arbitrary input.

use fastrand::Rng;
use proptest::prelude::*;

use super::*;

const NONE: [usize; 0] = [];
const MIB: f64 = 1_048_576.0;
/// Joint confidence of a comparison of several figures.
const JOINT: f64 = 0.99;

// Expected values from `tests/statistics/reference.py`, with numpy 2.4.6 and scipy 1.17.1.
const TIMES: [f64; 10] = [1.02, 0.98, 1.10, 1.01, 0.97, 1.30, 0.99, 1.00, 1.03, 0.96];
const PAIRS: [(f64, f64); 5] = [(10.0, 10.4), (11.0, 11.6), (10.5, 10.6), (9.8, 10.4), (10.2, 10.5)];
const MANY_A: [f64; 16] =
    [10.0, 11.0, 10.5, 9.8, 10.2, 10.1, 10.9, 9.9, 10.3, 10.7, 10.4, 9.7, 10.6, 10.8, 11.1, 9.6];
const MANY_B: [f64; 16] =
    [10.4, 11.6, 10.6, 10.4, 10.5, 10.8, 11.0, 10.6, 10.2, 11.3, 11.1, 9.9, 10.9, 11.5, 11.4, 10.3];

/// The ratio of pairs of a reference and a compared figure.
fn ratio_of(pairs: &[(f64, f64)], resolution: f64, confidence: f64) -> Option<Ratio> {
    let pairs: Vec<Pair> = pairs.iter().map(|&(reference, compared)| Pair { reference, compared }).collect();
    paired_ratio(&pairs, resolution, confidence)
}

fn close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected}");
}

#[test]
fn whole_figures_are_integers_in_documents() {
    let whole =
        Estimate { median: 4096.5, low: Some(-1.0), high: None, samples: vec![4096.0, 4097.0, 1e300] };
    let text = serde_json::to_string(&whole).unwrap();
    assert_eq!(text, r#"{"median":4096.5,"low":-1,"high":null,"samples":[4096,4097,1e+300]}"#);
}

#[test]
fn a_bootstrap_agrees_with_numpy() {
    for (confidence, low, high) in [(0.8, 0.985, 1.025), (0.95, 0.975, 1.065)] {
        let times = estimate(&TIMES, confidence, 7).unwrap();
        close(times.median, 1.005, 1e-12);
        close(times.low.unwrap(), low, 0.006);
        close(times.high.unwrap(), high, 0.021);
    }
    let normal = Normal::standard();
    let scores: Vec<f64> =
        (1..=101).map(|rank| normal.inverse_cdf((f64::from(rank) - 0.5) / 101.0)).collect();
    let scores = estimate(&scores, 0.95, 7).unwrap();
    close(scores.low.unwrap(), -0.250_785_183, 0.03);
    close(scores.high.unwrap(), 0.250_785_183, 0.03);
}

#[test]
fn order_statistics_go_on_where_the_bootstrap_ends() {
    let score = |count: usize, rank: usize| (rank as f64 + 0.5) / count as f64;
    let few: Vec<f64> = (0..MAX_BOOTSTRAP_SAMPLES).map(|rank| score(MAX_BOOTSTRAP_SAMPLES, rank)).collect();
    let more: Vec<f64> =
        (0..=MAX_BOOTSTRAP_SAMPLES).map(|rank| score(MAX_BOOTSTRAP_SAMPLES + 1, rank)).collect();
    let (few, more) = (estimate(&few, 0.95, 1).unwrap(), estimate(&more, 0.95, 1).unwrap());
    close(few.low.unwrap(), more.low.unwrap(), 0.01);
    close(few.high.unwrap(), more.high.unwrap(), 0.01);
}

#[test]
fn few_pairs_have_the_interval_of_student() {
    for (confidence, low, high) in
        [(0.95, 1.013_429_010, 1.064_758_972), (0.99, 0.997_081_742, 1.082_215_815)]
    {
        let ratio = ratio_of(&PAIRS, 0.0, confidence).unwrap();
        close(ratio.median, 1.04, 1e-9);
        close(ratio.low.unwrap(), low, 1e-8);
        close(ratio.high.unwrap(), high, 1e-8);
    }
    for (freedom, quantile) in [(1.0, 454.727_675_795), (4.0, 7.883_212_934), (9.0, 4.542_944_690)] {
        let students = StudentsT::new(0.0, 1.0, freedom).unwrap();
        close(students.inverse_cdf(0.9993) / quantile, 1.0, 1e-7);
    }
}

#[test]
fn more_pairs_have_the_interval_of_wilcoxon() {
    let pairs: Vec<(f64, f64)> = MANY_A.into_iter().zip(MANY_B).collect();
    let expected = [
        (0.95, 1.027_027_027, 1.060_435_786),
        (0.99, 1.020_618_557, 1.064_261_745),
        (0.999, 1.009_523_810, 1.068_858_064),
    ];
    for (confidence, low, high) in expected {
        let ratio = ratio_of(&pairs, 0.0, confidence).unwrap();
        close(ratio.median, 1.047_247_474, 1e-8);
        close(ratio.low.unwrap(), low, 1e-8);
        close(ratio.high.unwrap(), high, 1e-8);
    }
    // The normal approximation takes over where it is as good as the exact distribution.
    let exact = signed_rank_quantile(MAX_EXACT_PAIRS, 0.005).unwrap();
    let approximate = signed_rank_quantile(MAX_EXACT_PAIRS + 1, 0.005).unwrap();
    assert!(approximate > exact && approximate < exact + 40, "{exact} {approximate}");
}

#[test]
fn outliers_are_those_of_the_modified_z_score() {
    assert_eq!(outliers(&TIMES), [5]);
    assert_eq!(outliers(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0]), [7], "the deviation of most is 0");
    assert_eq!(
        outliers(&[1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6 + 4096.0]),
        NONE,
        "one page more is no outlier"
    );
    assert_eq!(outliers(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0]), [7]);
    assert_eq!(outliers(&[5.0, f64::NAN, 5.1, 5.2, f64::INFINITY, 5.1, 99.0]), [6]);
    assert_eq!(outliers(&[5.0; 6]), NONE);
    assert_eq!(outliers(&[5.0, 900.0]), NONE);
    assert_eq!(outliers(&[]), NONE);
}

#[test]
fn intervals_hold_together() {
    close(bonferroni(0.99, 7), 1.0 - 0.01 / 7.0, 1e-12);
    close(bonferroni(0.95, 0), 0.95, 1e-12);
    assert!(bonferroni(f64::NAN, 3) > 0.9 && bonferroni(2.0, 3) < 1.0);
}

#[test]
fn zeros_and_what_is_not_finite() {
    let ratio = |pairs: &[(f64, f64)]| ratio_of(pairs, 1.0, 0.95);
    let same = Ratio { median: 1.0, low: Some(1.0), high: Some(1.0) };
    assert_eq!(ratio(&[(0.0, 0.0); 3]), Some(same));
    assert_eq!(ratio(&[(7.0, 7.0), (8.0, 8.0)]), Some(same));
    assert_eq!(ratio(&[(0.0, 5.0); 5]), None, "nothing is a multiple of 0");
    assert_eq!(ratio(&[(f64::NAN, 5.0), (5.0, f64::INFINITY), (-1.0, 2.0)]), None);
    assert_eq!(ratio(&[]), None);
    let gone = ratio(&[(900.0, 0.0); 6]).unwrap();
    assert_eq!((gone.median, gone.low.unwrap(), gone.verdict()), (0.0, 0.0, Verdict::Less));
    let one_zero = ratio(&[(0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (2.0, 1.0), (1.0, 1.0)]).unwrap();
    assert_eq!((one_zero.median, one_zero.verdict()), (1.0, Verdict::Same));
    let once = ratio(&[(4.0, 5.0)]).unwrap();
    assert_eq!((once.median, once.low, once.verdict()), (1.25, None, Verdict::Unknown));
    assert_eq!(estimate(&[f64::NAN], 0.95, 0), None);
    assert_eq!(estimate(&[f64::NAN, 3.0], 0.95, 0).unwrap().samples, [3.0]);
    assert_eq!(estimate(&[3.0], 0.95, 0).unwrap().low, None);
}

#[test]
fn a_unit_more_is_no_difference_and_two_are() {
    let ratio = |more: f64| ratio_of(&[(100.0, 100.0 + more); 5], 1.0, 0.99).unwrap().verdict();
    assert_eq!((ratio(1.0), ratio(-1.0)), (Verdict::Same, Verdict::Same));
    assert_eq!((ratio(4.0), ratio(-4.0)), (Verdict::More, Verdict::Less));
}

#[test]
fn written_fields_have_the_names_of_the_interface() {
    let times = estimate(&[2.0, 2.0], 0.95, 0).unwrap();
    let text = serde_json::to_string(&times).unwrap();
    assert_eq!(text, r#"{"median":2,"low":2,"high":2,"samples":[2,2]}"#);
    let ratio = ratio_of(&[(4.0, 5.0)], 1.0, 0.95).unwrap();
    assert_eq!(serde_json::to_string(&ratio).unwrap(), r#"{"median":1.25,"low":null,"high":null}"#);
    assert_eq!(serde_json::to_string(&ratio.verdict()).unwrap(), r#""unknown""#);
}

/// A normally distributed sample, by the method of Box and Muller.
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// Distribution of a figure.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Normal,
    LogNormal,
    HeavyTailed,
    Bimodal,
    SeldomTheOtherMode,
    Pages,
    FewFaults,
}

const NOISES: [Noise; 7] = [
    Noise::Normal,
    Noise::LogNormal,
    Noise::HeavyTailed,
    Noise::Bimodal,
    Noise::SeldomTheOtherMode,
    Noise::Pages,
    Noise::FewFaults,
];

impl Noise {
    /// A figure distributed around `typical`; `normal_part` is its standard normal component.
    fn figure(self, typical: f64, normal_part: f64, random: &mut Rng) -> f64 {
        match self {
            Self::Normal => typical * (1.0 + 0.01 * normal_part),
            Self::LogNormal => typical * (0.5 * normal_part).exp(),
            Self::HeavyTailed => {
                let chi: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
                (typical * (1.0 + 0.01 * normal_part / (chi / 3.0).sqrt())).max(0.0)
            }
            Self::Bimodal => typical * (1.0 + 0.2 * f64::from(normal_part > 0.0) + 1e-3 * normal(random)),
            Self::SeldomTheOtherMode => {
                typical * (1.0 + 0.2 * f64::from(normal_part > 1.3) + 1e-3 * normal(random))
            }
            Self::Pages => ((typical + 6000.0 * normal_part) / 4096.0).floor() * 4096.0,
            Self::FewFaults => (2.0 + normal_part).max(0.0).floor() * 4096.0,
        }
    }
}

/// How many of 1,000 comparisons of a command with itself find five figures all the same.
fn same_of_1000(noise: Noise, repeats: usize) -> usize {
    let mut random = Rng::with_seed(repeats as u64 * 31 + noise as u64);
    let confidence = bonferroni(JOINT, 5);
    (0..1000)
        .filter(|_| {
            let mut figures = vec![Vec::new(); 5];
            for _ in 0..repeats {
                // Disturbances of a run affect all its figures.
                let common = [normal(&mut random), normal(&mut random)];
                for pairs in &mut figures {
                    let mut side = |common: f64| {
                        let part = 0.6 * common + 0.8 * normal(&mut random);
                        noise.figure(10.0 * MIB, part, &mut random)
                    };
                    pairs.push((side(common[0]), side(common[1])));
                }
            }
            figures.iter().all(|pairs| {
                ratio_of(pairs, 4096.0, confidence).is_none_or(|ratio| ratio.verdict() == Verdict::Same)
            })
        })
        .count()
}

#[test]
fn a_command_is_the_same_as_itself() {
    for noise in NOISES {
        for repeats in [5, 7, 10, 20] {
            let same = same_of_1000(noise, repeats);
            assert!(same >= 975, "{noise:?}, {repeats} repeats: {same} of 1000");
        }
    }
}

/// How many of 1,000 comparisons find b larger than a.
fn found_of_1000(repeats: usize, resolution: f64, mut figure: impl FnMut(bool, &mut Rng) -> f64) -> usize {
    let mut random = Rng::with_seed(repeats as u64);
    let confidence = bonferroni(JOINT, 7);
    (0..1000)
        .filter(|_| {
            let pairs: Vec<(f64, f64)> =
                (0..repeats).map(|_| (figure(false, &mut random), figure(true, &mut random))).collect();
            let ratio = ratio_of(&pairs, resolution, confidence).unwrap();
            ratio.verdict() == Verdict::More
        })
        .count()
}

#[test]
fn two_per_cent_more_instructions_are_found() {
    for repeats in [5, 7, 10, 20] {
        let found = found_of_1000(repeats, 1.0, |more, random| {
            let typical = if more { 1.02e8 } else { 1e8 };
            (typical * (1.0 + 1e-5 * normal(random))).round()
        });
        assert!(found >= 990, "{repeats} repeats: {found} of 1000");
    }
}

#[test]
fn a_mebibyte_more_is_found() {
    for repeats in [5, 7, 10, 20] {
        for typical in [10.0 * MIB, 100.0 * MIB] {
            for second_mode in [0.0, 0.25 * MIB] {
                // Five pairs from a bimodal distribution are too few for this confidence; seven
                // suffice.
                let least = if second_mode > 0.0 && repeats == 5 { 800 } else { 950 };
                let found = found_of_1000(repeats, 4096.0, |more, random| {
                    let mode = if random.bool() { second_mode } else { 0.0 };
                    let size = typical + mode + 1e5 * normal(random) + if more { MIB } else { 0.0 };
                    (size / 4096.0).round() * 4096.0
                });
                assert!(found >= least, "{repeats} repeats, {second_mode} of {typical}: {found} of 1000");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_has_an_answer(
        pairs in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..80),
        resolution in any::<f64>(),
        confidence in any::<f64>(),
        seed in any::<u64>(),
    ) {
        if let Some(ratio) = ratio_of(&pairs, resolution, confidence) {
            prop_assert!(ratio.median.is_finite());
            prop_assert!(ratio.low.is_none_or(|low| low >= 0.0 && low <= ratio.median));
            prop_assert!(ratio.high.is_none_or(|high| high.is_finite() && high >= ratio.median));
        }
        let samples: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
        if let Some(found) = estimate(&samples, confidence, seed) {
            prop_assert!(found.median.is_finite());
            prop_assert!(found.low.is_none_or(|low| low <= found.median));
            prop_assert!(found.high.is_none_or(|high| high >= found.median));
            prop_assert_eq!(estimate(&samples, confidence, seed), Some(found));
        }
        prop_assert!(outliers(&samples).iter().all(|&index| samples[index].is_finite()));
        prop_assert!(bonferroni(confidence, samples.len()) < 1.0);
    }

    #[test]
    fn order_and_scale_do_not_matter(
        mut pairs in proptest::collection::vec((1.0..1e9f64, 1.0..1e9f64), 2..40),
        power in -20..20i32,
    ) {
        let ratio = ratio_of(&pairs, 16.0, 0.99).unwrap();
        let factor = 2f64.powi(power);
        let scaled: Vec<(f64, f64)> = pairs.iter().map(|&(a, b)| (a * factor, b * factor)).collect();
        let swapped: Vec<(f64, f64)> = pairs.iter().map(|&(a, b)| (b, a)).collect();
        pairs.reverse();
        let others = [
            ratio_of(&pairs, 16.0, 0.99).unwrap(),
            ratio_of(&scaled, 16.0 * factor, 0.99).unwrap(),
        ];
        for other in others {
            prop_assert!((other.median / ratio.median - 1.0).abs() < 1e-9);
            prop_assert!((other.low.unwrap() / ratio.low.unwrap() - 1.0).abs() < 1e-6);
            prop_assert!((other.high.unwrap() / ratio.high.unwrap() - 1.0).abs() < 1e-6);
        }
        let swapped = ratio_of(&swapped, 16.0, 0.99).unwrap();
        prop_assert!((swapped.median * ratio.median - 1.0).abs() < 1e-9);
        prop_assert!((swapped.high.unwrap() * ratio.low.unwrap() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn blocks_are_drawn_from_by_themselves() {
    // Two machines, one twice as slow: the split between them is not part of the
    // variance.
    let samples: Vec<BlockSample> = (0..20)
        .map(|index| {
            let value = f64::from(index % 10) * 0.001 + f64::from(1 + index / 10);
            BlockSample { value, block: index / 10 }
        })
        .collect();
    let in_blocks = estimate_in_blocks(&samples, 0.95, 1).unwrap();
    let pooled = estimate(&samples.iter().map(|sample| sample.value).collect::<Vec<_>>(), 0.95, 1).unwrap();
    assert_eq!(in_blocks.median, pooled.median);
    let width = |estimate: &Estimate| estimate.high.unwrap() - estimate.low.unwrap();
    assert!(width(&in_blocks) < width(&pooled) / 2.0, "{in_blocks:?} {pooled:?}");
    let one_block: Vec<BlockSample> =
        samples.iter().map(|sample| BlockSample { block: 7, ..*sample }).collect();
    assert_eq!(estimate_in_blocks(&one_block, 0.95, 1).unwrap(), pooled);
    let separate = [1.0, 2.0, 9.0].map(|value| BlockSample { value, block: value as u32 });
    let separate = estimate_in_blocks(&separate, 0.95, 1).unwrap();
    assert_eq!((separate.median, separate.low, separate.high), (2.0, None, None), "no variation is known");
}
