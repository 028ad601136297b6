//! The sheet around the panels: title, numbered legend, and the run's parameters in small type below.
//!
//! The picture is 1400 pixels wide. Its height follows from its parts: the panels keep their height and the sheet grows
//! when labels or parameters need more lines, so that nothing overlaps.

use super::PlotError;
use super::canvas::{Align, Area, Canvas, Turn, render};
use super::font::{Fonts, Type};
use super::palette::{AXIS, FAINT_TEXT, GROUND, RunStyle, TEXT, run_style};

/// Words around a figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FigureText {
    /// What the figure shows, in one line above it.
    pub title: String,
    /// Parameters of the runs, set small and grey below the panels; wrapped to the width of the figure, line breaks
    /// are kept.
    pub parameters: String,
}

/// How the legend shows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A hatched patch.
    Bar,
    /// A piece of line with a marker.
    LineAndMarker,
    /// A piece of line and a marker beside it.
    LineThenMarker,
}

/// A run in the legend.
pub(super) struct LegendEntry<'a> {
    /// The run's name.
    pub label: &'a str,
    /// Something in small type below the name; may be empty.
    pub note: String,
}

const WIDTH: f64 = 1400.0;
const LEAST_HEIGHT: f64 = 700.0;
const MARGIN: f64 = 28.0;
const TITLE: Type = Type::bold(25.0);
const LABEL: Type = Type::regular(16.5);
const NOTE: Type = Type::regular(14.5);
const PARAMETERS: Type = Type::regular(14.5);
const KEY_WIDTH: f64 = 46.0;
const KEY_GAP: f64 = 9.0;
const COLUMN_GAP: f64 = 34.0;
const ROW_GAP: f64 = 9.0;

/// The number of the run at place `index` in legend and panels; a single run needs none.
pub(super) fn run_number(index: usize, runs: usize) -> Option<String> {
    (runs > 1).then(|| (index + 1).to_string())
}

/// Draws a sheet and hands the area for its panels, at least `body_height` pixels high, to `draw_panels`.
pub(super) fn draw_figure(
    text: &FigureText,
    key: Key,
    legend: &[LegendEntry],
    body_height: f64,
    draw_panels: impl FnOnce(&mut Canvas, Area),
) -> Result<Vec<u8>, PlotError> {
    if legend.is_empty() {
        return Err(PlotError::NoRuns);
    }
    let fonts = Fonts::embedded()?;
    let inner_width = WIDTH - 2.0 * MARGIN;
    let title = fonts.wrap(&text.title, TITLE, inner_width, 2);
    let parameters = fonts.wrap(&text.parameters, PARAMETERS, inner_width, 12);
    let legend = LegendLayout::new(&fonts, legend, inner_width);

    let title_bottom = 20.0 + title.len() as f64 * TITLE.line_height();
    let legend_top = title_bottom + 12.0;
    let body_top = legend_top + legend.height() + 14.0;
    let footer = match parameters.len() {
        0 => 12.0,
        lines => 26.0 + lines as f64 * PARAMETERS.line_height(),
    };
    let height = (body_top + body_height + footer).max(LEAST_HEIGHT).ceil();
    let body = Area { left: MARGIN, top: body_top, right: WIDTH - MARGIN, bottom: height - footer };

    render(&fonts, WIDTH as u32, height as u32, |canvas| {
        for (line, words) in title.iter().enumerate() {
            let y = 20.0 + (line as f64 + 0.5) * TITLE.line_height();
            canvas.text(words, TITLE, TEXT, (MARGIN, y), Align::Start, Turn::Level);
        }
        legend.draw(canvas, legend_top, key);
        draw_panels(canvas, body);
        for (line, words) in parameters.iter().enumerate() {
            let y = body.bottom + 14.0 + (line as f64 + 0.5) * PARAMETERS.line_height();
            let anchor = (MARGIN, y);
            canvas.text(words, PARAMETERS, FAINT_TEXT, anchor, Align::Start, Turn::Level);
        }
    })
}

/// The legend in columns of equal width, filled row by row.
struct LegendLayout {
    entries: Vec<LegendLines>,
    columns: usize,
    column_width: f64,
    number_width: f64,
}

struct LegendLines {
    number: Option<String>,
    label: Vec<String>,
    note: Vec<String>,
}

impl LegendLines {
    fn height(&self) -> f64 {
        self.label.len() as f64 * LABEL.line_height() + self.note.len() as f64 * NOTE.line_height()
    }
}

impl LegendLayout {
    fn new(fonts: &Fonts, legend: &[LegendEntry], width: f64) -> Self {
        let number_width = match run_number(legend.len() - 1, legend.len()) {
            Some(widest) => fonts.width(&widest, LABEL) + 8.0,
            None => 0.0,
        };
        let beside = KEY_WIDTH + KEY_GAP + number_width;
        let widest = legend
            .iter()
            .map(|entry| {
                let label = fonts.width(entry.label, LABEL);
                beside + label.max(fonts.width(&entry.note, NOTE))
            })
            .fold(0.0, f64::max);
        // As many columns as the widest label allows, but no fewer than two or three for want of breaking a label.
        let fitting = ((width + COLUMN_GAP) / (widest + COLUMN_GAP)).floor() as usize;
        let least = match legend.len() {
            1 | 2 => legend.len(),
            3 | 5 | 6 => 3,
            _ => 2,
        };
        let most = fitting.clamp(least, legend.len().clamp(least, 6));
        // No more columns than the number of rows needs, so that rows are evenly filled.
        let columns = legend.len().div_ceil(legend.len().div_ceil(most));
        let column_width = ((width + COLUMN_GAP) / columns as f64 - COLUMN_GAP).min(widest.ceil() + 1.0);
        let entries = legend
            .iter()
            .enumerate()
            .map(|(index, entry)| LegendLines {
                number: run_number(index, legend.len()),
                label: fonts.wrap(entry.label, LABEL, column_width - beside, 3),
                note: fonts.wrap(&entry.note, NOTE, column_width - beside, 2),
            })
            .collect();
        Self { entries, columns, column_width, number_width }
    }

    fn row_heights(&self) -> impl Iterator<Item = f64> {
        self.entries
            .chunks(self.columns)
            .map(|row| row.iter().map(LegendLines::height).fold(LABEL.line_height(), f64::max))
    }

    fn height(&self) -> f64 {
        let rows = self.entries.len().div_ceil(self.columns);
        self.row_heights().sum::<f64>() + rows.saturating_sub(1) as f64 * ROW_GAP
    }

    fn draw(&self, canvas: &mut Canvas, top: f64, key: Key) {
        let mut y = top;
        for (row, height) in self.row_heights().enumerate() {
            let first = row * self.columns;
            for (column, entry) in self.entries[first..].iter().take(self.columns).enumerate() {
                let x = MARGIN + column as f64 * (self.column_width + COLUMN_GAP);
                self.draw_entry(canvas, entry, (x, y), key, &run_style(first + column));
            }
            y += height + ROW_GAP;
        }
    }

    fn draw_entry(
        &self,
        canvas: &mut Canvas,
        entry: &LegendLines,
        (left, top): (f64, f64),
        key: Key,
        style: &RunStyle,
    ) {
        let middle = top + LABEL.line_height() / 2.0;
        draw_key(canvas, (left, middle), key, style);
        let number_x = left + KEY_WIDTH + KEY_GAP;
        if let Some(number) = &entry.number {
            let bold = Type::bold(LABEL.size);
            canvas.text(number, bold, TEXT, (number_x, middle), Align::Start, Turn::Level);
        }
        let x = number_x + self.number_width;
        let mut y = top;
        for (lines, kind, color) in [(&entry.label, LABEL, TEXT), (&entry.note, NOTE, FAINT_TEXT)] {
            for line in lines {
                let anchor = (x, y + kind.line_height() / 2.0);
                canvas.text(line, kind, color, anchor, Align::Start, Turn::Level);
                y += kind.line_height();
            }
        }
    }
}

fn draw_key(canvas: &mut Canvas, (left, middle): (f64, f64), key: Key, style: &RunStyle) {
    let right = left + KEY_WIDTH;
    match key {
        Key::Bar => {
            let patch = Area { left, top: middle - 9.0, right, bottom: middle + 9.0 };
            draw_bar(canvas, patch, style);
        }
        Key::LineAndMarker => {
            canvas.run_line(&[(left, middle), (right, middle)], 2.4, style);
            draw_marker(canvas, ((left + right) / 2.0, middle), 5.0, style);
        }
        Key::LineThenMarker => {
            canvas.run_line(&[(left, middle), (right - 17.0, middle)], 2.4, style);
            draw_marker(canvas, (right - 6.0, middle), 5.0, style);
        }
    }
}

/// A bar of a run: its colour, its hatch, a thin outline.
pub(super) fn draw_bar(canvas: &mut Canvas, area: Area, style: &RunStyle) {
    canvas.fill(area, style.color);
    canvas.hatch(area, style.hatch, style.hatch_color);
    canvas.outline(area, 1.0, AXIS);
}

/// A marker of a run, set off from lines and other markers by a white edge, or by a dark one if its colour is light; the
/// smallest have none, for they come in crowds.
pub(super) fn draw_marker(canvas: &mut Canvas, center: (f64, f64), radius: f64, style: &RunStyle) {
    let edge = if style.cased { AXIS } else { GROUND };
    let edge_width = match radius {
        ..2.0 => 0.0,
        ..4.0 => 0.5,
        _ => 1.0,
    };
    canvas.marker(center, radius, style.marker, style.color, (edge_width, edge));
}
