pub mod health;
pub mod maintenance;
pub mod reconciler;
