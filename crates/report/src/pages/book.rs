//! Several pages as one: a table of contents with the results, and the environment once.

use super::page::{Fact, Page, Table};

/// Several pages in one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    /// Its heading.
    pub title: String,
    /// The overall result, in a sentence.
    pub headline: String,
    /// A row per chapter, in their order: its name and its result.
    pub contents: Table,
    /// The chapters.
    pub chapters: Vec<Chapter>,
    /// The machine and the settings, of all chapters.
    pub environment: Vec<Fact>,
}

/// A page of a book.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chapter {
    /// Its name, from which its anchor is made.
    pub name: String,
    /// What is in it; its own environment is not shown.
    pub page: Page,
}
