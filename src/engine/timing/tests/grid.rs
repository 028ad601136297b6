//! The grid against a naive reading of it.

use proptest::prelude::*;

use crate::engine::timing::grid::{Axis, Grid};

/// The last cell that starts at or before the place, and how far into it the place is.
fn naive_cell(points: &[u64], at: u64) -> (usize, usize, f64) {
    let low = (0..points.len()).rev().find(|index| points[*index] <= at).unwrap_or(0);
    match points.get(low + 1) {
        Some(next) if at > points[low] => (low, low + 1, (at - points[low]) as f64 / (next - points[low]) as f64),
        _ => (low, low, 0.0),
    }
}

fn axis(points: &[u64]) -> Axis {
    Axis::new(points.iter().map(|point| *point as f64).collect()).expect("ascending points")
}

/// Points of any order of magnitude, and places at, beside and between them.
fn points_and_place() -> impl Strategy<Value = (Vec<u64>, u64)> {
    let number = (0_u32..40, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1));
    let points = prop::collection::btree_set(number.clone(), 1..20).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    (points, number, any::<prop::sample::Index>(), 0_u64..4).prop_map(|(points, free, index, kind)| {
        let point = points[index.index(points.len())];
        let place = [point, point + 1, point.saturating_sub(1), free][kind as usize];
        (points, place)
    })
}

proptest! {
    #[test]
    fn two_axes_read_as_the_naive_way(
        (rows, row) in points_and_place(),
        (columns, column) in points_and_place(),
        seed in 1_u64..1000,
    ) {
        let value = |r: usize, c: usize| ((r * 31 + c * 17) as u64 * seed % 101) as f64;
        let values = (0..rows.len()).flat_map(|r| (0..columns.len()).map(move |c| value(r, c))).collect();
        let grid = Grid::new([axis(&rows), axis(&columns)], values).expect("a value for every point");
        let (r, next_r, down) = naive_cell(&rows, row);
        let (c, next_c, right) = naive_cell(&columns, column);
        let along = |r: usize| value(r, c) + right * (value(r, next_c) - value(r, c));
        let expected = along(r) + down * (along(next_r) - along(r));
        let outside = |points: &[u64], at: u64| at < points[0] || at > points[points.len() - 1];
        let (ours, told) = grid.at([row, column]);
        prop_assert!((ours - expected).abs() < 1e-9, "{ours} instead of {expected}");
        prop_assert_eq!(told, outside(&rows, row) || outside(&columns, column));
        if rows.contains(&row) && columns.contains(&column) {
            prop_assert_eq!(ours, value(r, c), "a point of the grid is exact");
        }
    }
}

#[test]
fn an_axis_ascends_from_zero_or_above() {
    let new = |points: &[f64]| Axis::new(points.to_vec());
    assert!(new(&[0.0, 0.5, 2.0]).is_some());
    assert_eq!(new(&[-0.0, 1.0]), new(&[0.0, 1.0]));
    for bad in [&[][..], &[-1.0, 1.0], &[1.0, 1.0], &[2.0, 1.0], &[0.0, f64::NAN], &[0.0, f64::INFINITY]] {
        assert!(new(bad).is_none(), "{bad:?}");
    }
    assert!(Grid::new([axis(&[1, 2]), axis(&[1])], vec![1.0]).is_none(), "a value is missing");
}
