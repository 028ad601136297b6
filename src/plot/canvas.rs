//! Ink: shapes and text on a buffer three times as wide and high as the picture, averaged down and encoded as PNG.
//!
//! All coordinates and lengths are pixels of the finished picture, as fractions; y grows downwards. The shapes are
//! rasterised by plotters' bitmap backend, the glyphs by ab_glyph. A shape that the backend refuses is remembered and
//! reported once at the end, so that drawing code reads as a list of shapes.

use std::ops::Range;

use ab_glyph::Font;
use plotters::backend::BitMapBackend;
use plotters_backend::{BackendColor, BackendCoord, DrawingBackend, DrawingErrorKind};

use super::PlotError;
use super::font::{Fonts, Type};
use super::palette::{AXIS, GROUND, Hatch, Marker, RunStyle};

/// Pixels of the buffer for one pixel of the picture, in each direction.
const SUPERSAMPLING: u32 = 3;
const SCALE: f64 = SUPERSAMPLING as f64;

/// A rectangle in pixels of the picture; `top` is above `bottom`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Area {
    /// Width in pixels.
    pub fn width(&self) -> f64 {
        self.right - self.left
    }

    /// Height in pixels.
    pub fn height(&self) -> f64 {
        self.bottom - self.top
    }

    /// The middle of the rectangle.
    pub fn center(&self) -> (f64, f64) {
        ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0)
    }
}

/// Where a text lies relative to its anchor, along its own direction of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// The text begins at the anchor.
    Start,
    /// The text is centred on the anchor.
    Center,
    /// The text ends at the anchor.
    End,
}

/// The direction of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Left to right.
    Level,
    /// Bottom to top.
    Upwards,
}

/// Receives the shapes of one picture.
pub(super) struct Canvas<'a> {
    backend: BitMapBackend<'a>,
    fonts: &'a Fonts,
    failure: Option<String>,
}

/// Draws a picture of `width` × `height` pixels and encodes it as PNG.
pub(super) fn render(
    fonts: &Fonts,
    width: u32,
    height: u32,
    draw: impl FnOnce(&mut Canvas),
) -> Result<Vec<u8>, PlotError> {
    let size = (width * SUPERSAMPLING, height * SUPERSAMPLING);
    let mut buffer = vec![GROUND.rgb.0; size.0 as usize * size.1 as usize * 3];
    let failure = {
        let backend = BitMapBackend::with_buffer_and_format(&mut buffer, size)
            .map_err(|error| PlotError::Draw(error.to_string()))?;
        let mut canvas = Canvas { backend, fonts, failure: None };
        draw(&mut canvas);
        canvas.failure
    };
    match failure {
        Some(message) => Err(PlotError::Draw(message)),
        None => encode(&average_down(&buffer, width as usize), width, height),
    }
}

/// The mean of each square of `SUPERSAMPLING`² pixels, channel by channel, rounded to nearest. Most of a figure is empty
/// ground, which is passed over in blocks.
fn average_down(buffer: &[u8], width: usize) -> Vec<u8> {
    const BLOCK: usize = 28;
    let factor = SUPERSAMPLING as usize;
    let ground = [GROUND.rgb.0; BLOCK * SUPERSAMPLING as usize * 3];
    let mut picture = Vec::with_capacity(buffer.len() / (factor * factor));
    for rows in buffer.chunks_exact(width * factor * 3 * factor) {
        for start in (0..width).step_by(BLOCK) {
            let end = (start + BLOCK).min(width);
            let span = start * factor * 3..end * factor * 3;
            let mut lines = rows.chunks_exact(width * factor * 3);
            if lines.all(|line| line[span.clone()] == ground[..span.len()]) {
                picture.extend_from_slice(&ground[..(end - start) * 3]);
            } else {
                average_block(rows, width, start..end, &mut picture);
            }
        }
    }
    picture
}

/// Appends the means of the pixels `columns` of one row of the picture, whose buffer rows are `rows`.
fn average_block(rows: &[u8], width: usize, columns: Range<usize>, picture: &mut Vec<u8>) {
    let factor = SUPERSAMPLING as usize;
    let samples = factor * factor;
    for x in columns {
        for channel in 0..3 {
            let mut sum = 0;
            for line in rows.chunks_exact(width * factor * 3) {
                for column in 0..factor {
                    sum += usize::from(line[(x * factor + column) * 3 + channel]);
                }
            }
            picture.push(((sum + samples / 2) / samples) as u8);
        }
    }
}

fn encode(picture: &[u8], width: u32, height: u32) -> Result<Vec<u8>, PlotError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(picture)?;
    writer.finish()?;
    Ok(bytes)
}

/// The nearest pixel of the buffer.
fn buffer_point((x, y): (f64, f64)) -> BackendCoord {
    ((x * SCALE).round() as i32, (y * SCALE).round() as i32)
}

impl Canvas<'_> {
    /// The fonts that texts are set in.
    pub fn fonts(&self) -> &Fonts {
        self.fonts
    }

    fn note<E: std::error::Error + Send + Sync>(&mut self, drawn: Result<(), DrawingErrorKind<E>>) {
        if let Err(error) = drawn {
            self.failure.get_or_insert_with(|| error.to_string());
        }
    }

    /// Fills a rectangle.
    pub fn fill(&mut self, area: Area, color: BackendColor) {
        let (left, top) = buffer_point((area.left, area.top));
        let (right, bottom) = buffer_point((area.right, area.bottom));
        if right > left && bottom > top {
            let drawn = self.backend.draw_rect((left, top), (right - 1, bottom - 1), &color, true);
            self.note(drawn);
        }
    }

    /// Draws the four sides of a rectangle, `width` pixels thick, centred on its edges.
    pub fn outline(&mut self, area: Area, width: f64, color: BackendColor) {
        let half = width / 2.0;
        let (left, right) = (area.left - half, area.right + half);
        let (top, bottom) = (area.top - half, area.bottom + half);
        let sides = [
            (left, top, right, top + width),
            (left, bottom - width, right, bottom),
            (left, top, left + width, bottom),
            (right - width, top, right, bottom),
        ];
        for (left, top, right, bottom) in sides {
            let side = Area { left, top, right, bottom };
            self.fill(side, color);
        }
    }

    /// A level line of one pixel, sharp because it fills whole pixels.
    pub fn level_rule(&mut self, y: f64, left: f64, right: f64, color: BackendColor) {
        let top = y.floor();
        let rule = Area { left, top, right, bottom: top + 1.0 };
        self.fill(rule, color);
    }

    /// An upright line of one pixel, sharp because it fills whole pixels.
    pub fn upright_rule(&mut self, x: f64, top: f64, bottom: f64, color: BackendColor) {
        let left = x.floor();
        let rule = Area { left, top, right: left + 1.0, bottom };
        self.fill(rule, color);
    }

    /// Lays a pattern over a rectangle.
    pub fn hatch(&mut self, area: Area, hatch: Hatch, color: BackendColor) {
        let (left, top) = buffer_point((area.left, area.top));
        let (right, bottom) = buffer_point((area.right, area.bottom));
        // In pixels of the buffer; the pattern is tied to the lower left corner.
        let (pitch, stroke) = (24, 4);
        let diagonal_stroke = 5;
        for y in top..bottom {
            for x in left..right {
                let (across, up) = (x - left, bottom - y);
                let rising = (across - up).rem_euclid(pitch) < diagonal_stroke;
                let falling = (across + up).rem_euclid(pitch) < diagonal_stroke;
                let level = (up + pitch / 2).rem_euclid(pitch) < stroke;
                let upright = (across + pitch / 2).rem_euclid(pitch) < stroke;
                let inked = match hatch {
                    Hatch::None => false,
                    Hatch::Rising => rising,
                    Hatch::Falling => falling,
                    Hatch::Cross => rising || falling,
                    Hatch::Level => level,
                    Hatch::Upright => upright,
                    Hatch::Grid => level || upright,
                    Hatch::Dots => {
                        let row = up.div_euclid(pitch);
                        let dx = (across + row % 2 * (pitch / 2)).rem_euclid(pitch) - pitch / 2;
                        let dy = up.rem_euclid(pitch) - pitch / 2;
                        dx * dx + dy * dy <= 20
                    }
                };
                if inked {
                    let drawn = self.backend.draw_pixel((x, y), color);
                    self.note(drawn);
                }
            }
        }
    }

    /// Fills a polygon.
    pub fn polygon(&mut self, corners: &[(f64, f64)], color: BackendColor) {
        let corners: Vec<BackendCoord> = corners.iter().copied().map(buffer_point).collect();
        let drawn = self.backend.fill_polygon(corners, &color);
        self.note(drawn);
    }

    /// A line through `points`, `width` pixels thick with round joins. `dash` gives lengths of strokes and gaps in turn;
    /// an empty one means a solid line.
    pub fn line(&mut self, points: &[(f64, f64)], width: f64, color: BackendColor, dash: &[f64]) {
        if dash.is_empty() {
            for pair in points.windows(2) {
                self.stroke(pair[0], pair[1], width, color);
            }
            return;
        }
        let mut place = 0;
        let mut left_of_dash = dash[0];
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let length = (x1 - x0).hypot(y1 - y0);
            let at = |distance: f64| {
                let share = if length > 0.0 { distance / length } else { 0.0 };
                (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
            };
            let mut done = 0.0;
            while done < length {
                let end = (done + left_of_dash).min(length);
                if place % 2 == 0 {
                    self.stroke(at(done), at(end), width, color);
                }
                left_of_dash -= end - done;
                done = end;
                if left_of_dash <= 1e-9 {
                    place = (place + 1) % dash.len();
                    left_of_dash = dash[place].max(0.5);
                }
            }
        }
    }

    /// A run's line: in its colour and dash, with a dark edge if the colour is too light for white ground.
    pub fn run_line(&mut self, points: &[(f64, f64)], width: f64, style: &RunStyle) {
        if style.cased {
            self.line(points, width + 1.6, AXIS, style.dash);
        }
        self.line(points, width, style.color, style.dash);
    }

    /// One straight piece with round ends.
    fn stroke(&mut self, from: (f64, f64), to: (f64, f64), width: f64, color: BackendColor) {
        let half = width / 2.0;
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        if length > 0.0 {
            let (nx, ny) = (-dy / length * half, dx / length * half);
            let corners = [
                (from.0 + nx, from.1 + ny),
                (to.0 + nx, to.1 + ny),
                (to.0 - nx, to.1 - ny),
                (from.0 - nx, from.1 - ny),
            ];
            self.polygon(&corners, color);
        }
        self.polygon(&ring(to, half, 10, 0.0, 1.0), color);
    }

    /// A point of about `radius` pixels in `color`, with an edge of `edge_width` pixels in `edge`.
    pub fn marker(
        &mut self,
        center: (f64, f64),
        radius: f64,
        marker: Marker,
        color: BackendColor,
        (edge_width, edge): (f64, BackendColor),
    ) {
        if edge_width > 0.0 {
            self.marker_shape(center, radius, edge_width, marker, edge);
        }
        self.marker_shape(center, radius, 0.0, marker, color);
    }

    /// The shape, grown by `grow` pixels on all sides.
    fn marker_shape(&mut self, center: (f64, f64), radius: f64, grow: f64, marker: Marker, color: BackendColor) {
        let quarter = std::f64::consts::FRAC_PI_4;
        let corners = match marker {
            Marker::Disc => ring(center, radius + grow, 20, 0.0, 1.0),
            Marker::Square => ring(center, radius * 1.25 + grow * std::f64::consts::SQRT_2, 4, quarter, 1.0),
            Marker::Diamond => ring(center, radius * 1.35 + grow * std::f64::consts::SQRT_2, 4, 0.0, 1.0),
            Marker::TriangleUp => ring(center, radius * 1.4 + grow * 2.0, 3, 0.0, 1.0),
            Marker::TriangleDown => ring(center, radius * 1.4 + grow * 2.0, 3, 4.0 * quarter, 1.0),
            Marker::Star => ring(center, radius * 1.5 + grow * 1.9, 10, 0.0, 0.48),
            Marker::Plus | Marker::Saltire => {
                let start = if marker == Marker::Plus { 0.0 } else { quarter };
                for arm in 0..2 {
                    let angle = start + f64::from(arm) * 2.0 * quarter;
                    let (dx, dy) = (angle.cos() * (radius * 1.2 + grow), angle.sin() * (radius * 1.2 + grow));
                    let half = radius * 0.32 + grow;
                    let (nx, ny) = (-angle.sin() * half, angle.cos() * half);
                    let corners = [
                        (center.0 - dx + nx, center.1 - dy + ny),
                        (center.0 + dx + nx, center.1 + dy + ny),
                        (center.0 + dx - nx, center.1 + dy - ny),
                        (center.0 - dx - nx, center.1 - dy - ny),
                    ];
                    self.polygon(&corners, color);
                }
                return;
            }
        };
        self.polygon(&corners, color);
    }

    /// One line of text. Across its direction of reading, the middle of its capitals lies on the anchor.
    pub fn text(&mut self, text: &str, kind: Type, color: BackendColor, anchor: (f64, f64), align: Align, turn: Turn) {
        let fonts = self.fonts;
        let (glyphs, width) = fonts.glyphs(text, kind, SCALE);
        let along = match align {
            Align::Start => 0.0,
            Align::Center => -width / 2.0,
            Align::End => -width,
        };
        let down = kind.cap_height() / 2.0 * SCALE;
        let (anchor_x, anchor_y) = (anchor.0 * SCALE, anchor.1 * SCALE);
        let face = fonts.face(kind.bold);
        for mut glyph in glyphs {
            // Whole buffer pixels for the shift, so that equal letters look equal wherever they stand.
            let (shift_x, shift_y) = match turn {
                Turn::Level => ((anchor_x + along).round(), (anchor_y + down).round()),
                Turn::Upwards => (along.round(), down.round()),
            };
            glyph.position.x += shift_x as f32;
            glyph.position.y += shift_y as f32;
            let Some(outline) = face.outline_glyph(glyph) else {
                continue; // a space
            };
            let bounds = outline.px_bounds();
            let (left, top) = (bounds.min.x as i32, bounds.min.y as i32);
            outline.draw(|x, y, coverage| {
                if coverage <= 0.0 {
                    return;
                }
                let (x, y) = (left + x as i32, top + y as i32);
                let place = match turn {
                    Turn::Level => (x, y),
                    Turn::Upwards => (anchor_x.round() as i32 + y, anchor_y.round() as i32 - x),
                };
                let ink = color.mix(f64::from(coverage.min(1.0)));
                let drawn = self.backend.draw_pixel(place, ink);
                self.note(drawn);
            });
        }
    }
}

/// Corners of a regular polygon that begins at the top, turned by `turn` radians; every second one lies at
/// `inner` × `radius`.
fn ring(center: (f64, f64), radius: f64, corners: u32, turn: f64, inner: f64) -> Vec<(f64, f64)> {
    (0..corners)
        .map(|corner| {
            let angle = turn + std::f64::consts::TAU * f64::from(corner) / f64::from(corners);
            let reach = if corner % 2 == 0 { radius } else { radius * inner };
            (center.0 + reach * angle.sin(), center.1 - reach * angle.cos())
        })
        .collect()
}
