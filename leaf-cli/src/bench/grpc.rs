//! Ids over gRPC: `leaf.v1.IdService/NextId`.

use anyhow::Result;
use leaf_node::config::ConfigError;
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::next_id_request::Source;
use leaf_proto::v1::{NextIdRequest, Snowflake};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::wire::{Failure, broken};

/// The source of the ids, and the token, of each request.
pub(super) struct Asks {
    source: Source,
    token: Option<MetadataValue<Ascii>>,
}

impl Asks {
    pub(super) fn new(tag: Option<&str>, token: Option<&str>) -> Result<Self, ConfigError> {
        let source = tag.map_or(Source::Snowflake(Snowflake {}), |tag| Source::Tag(tag.to_owned()));
        let token = token.map(|token| {
            let mut value: MetadataValue<Ascii> = format!("Bearer {token}")
                .parse()
                .map_err(|_| ConfigError::new("the token has characters that none has"))?;
            value.set_sensitive(true);
            Ok::<_, ConfigError>(value)
        });
        Ok(Self { source, token: token.transpose()? })
    }
}

/// A connection with one request in flight.
pub(super) struct Connection {
    client: IdServiceClient<Channel>,
    source: Source,
    token: Option<MetadataValue<Ascii>>,
}

impl Connection {
    pub(super) async fn open((host, port): (&str, u16), asks: &Asks) -> Result<Self, Failure> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(broken)?;
        let channel = endpoint.connect().await.map_err(broken)?;
        let client = IdServiceClient::new(channel);
        Ok(Self { client, source: asks.source.clone(), token: asks.token.clone() })
    }

    pub(super) async fn ask(&mut self) -> Result<u64, Failure> {
        let mut request = Request::new(NextIdRequest { source: Some(self.source.clone()) });
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        match self.client.next_id(request).await {
            Ok(answer) => Ok(answer.into_inner().id.cast_unsigned()),
            // The connection of a channel is made anew by itself.
            Err(status) => {
                let text = format!("{:?}: {}", status.code(), status.message());
                Err(if status.code() == Code::Unavailable {
                    Failure::Broken(text)
                } else {
                    Failure::Refused(text)
                })
            }
        }
    }
}
