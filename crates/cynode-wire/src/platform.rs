pub mod health;
pub mod page;
pub mod problem;
pub mod settings;
