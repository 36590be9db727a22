//! A service with axum that numbers its own orders: Leaf runs inside it.
//!
//!     cargo run -p leaf-node --example axum_service -- 127.0.0.1:3000
//!
//! Without an address it sends two requests to itself, and ends.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use leaf_node::Leaf;
use leaf_segment::TagHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

#[derive(Clone)]
struct Service {
    /// Kept, so that no request looks the tag up.
    orders: TagHandle,
    leaf: Arc<Leaf>,
}

/// The number of a new order. If the database is unavailable for longer than the ids in memory
/// last, clients get status 503 and may try again.
async fn new_order(State(service): State<Service>) -> Result<String, StatusCode> {
    let id = service.orders.next().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(id.to_string())
}

/// An id for a message, which sorts by time.
async fn new_message(State(service): State<Service>) -> Result<String, StatusCode> {
    let id = service.leaf.snowflake().next().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(id.to_string())
}

async fn ready(State(service): State<Service>) -> (StatusCode, String) {
    let health = service.leaf.health();
    let status = match health.can_answer() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, health.to_string())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("leaf-axum-{}", std::process::id()));
    let leaf = Arc::new(Leaf::builder().data_dir(&directory).open().await?);
    let orders = leaf.segment("leaf-segment-test").await?;
    let routes = Router::new()
        .route("/orders", post(new_order))
        .route("/messages", post(new_message))
        .route("/readyz", get(ready))
        .with_state(Service { orders, leaf: Arc::clone(&leaf) });

    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let own = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let serving = axum::serve(listener, routes).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let serving = tokio::spawn(serving.into_future());
    match address {
        Some(_) => tokio::signal::ctrl_c().await?,
        None => {
            for path in ["/orders", "/messages"] {
                println!("{path}: {}", ask(own, path).await?);
            }
        }
    }
    let _ = stop.send(());
    serving.await??;

    // Gives the worker id and the unused ids back: nobody else holds it any more.
    if let Some(leaf) = Arc::into_inner(leaf) {
        leaf.close().await;
    }
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// The body of the answer to a POST.
async fn ask(address: std::net::SocketAddr, path: &str) -> Result<String, std::io::Error> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or(answer))
}
