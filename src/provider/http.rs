//! Endpoints: services that speak a wire format over HTTP.

use super::{DeltaStream, Provider, ProviderError, Request, RequestContext};
/// A service.
pub struct Endpoint;
impl Endpoint {
    /// All services.
    pub fn all() -> Vec<Self> {
        Vec::new()
    }
}
#[async_trait::async_trait]
impl Provider for Endpoint {
    fn name(&self) -> &str {
        todo!()
    }
    async fn stream(
        &self,
        _request: Request,
        _context: RequestContext,
    ) -> Result<DeltaStream, ProviderError> {
        todo!()
    }
}
