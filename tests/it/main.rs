//! The one integration binary: what users and other programs may rely on.

mod golden;
mod tidy;
