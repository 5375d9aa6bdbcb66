//! `ApiError`: a problem as an OpenAI error body with its HTTP status.
//!
//! In: a [`Problem`], perhaps the field at fault. Out: a response. Invariant: every answer that is not a success has
//! this body, whatever went wrong.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::reply::{ErrorBody, ErrorDetail};
use crate::base::{Code, Problem};

/// A refusal or failure on its way to a client.
#[derive(Clone, Debug)]
pub struct ApiError {
    problem: Problem,
    param: Option<String>,
    status: StatusCode,
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let status =
            StatusCode::from_u16(problem.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            problem,
            param: None,
            status,
        }
    }
}

/// Seconds after which a client may try again when the queue is full or the model loads.
const RETRY_AFTER_SECONDS: &str = "1";

impl ApiError {
    /// A field with a wrong value.
    pub fn invalid(param: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::from(Problem::new(Code::RequestInvalid, what, remedy)).naming(param)
    }

    /// A field that asks for what is not built.
    pub fn unsupported(param: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let problem = Problem::new(Code::RequestUnsupported, what, remedy);
        Self::from(problem).naming(param)
    }

    /// Adds the field at fault.
    #[must_use]
    pub fn naming(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Another status than the code's own (405, 408).
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body.
    pub fn body(&self) -> ErrorBody {
        let problem = &self.problem;
        let mut message = problem.what.clone();
        if !problem.remedy.is_empty() {
            message.push_str("; ");
            message.push_str(&problem.remedy);
        }
        let kind = match self.status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            status if status < 500 => "invalid_request_error",
            _ => "server_error",
        };
        ErrorBody {
            error: ErrorDetail {
                message,
                kind,
                param: self.param.clone(),
                code: problem.code.as_str().to_owned(),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.problem.code == Code::NotReady {
            // Whoever polls /ready while the model loads is doing the right thing.
            tracing::debug!(what = %self.problem.what, "not ready");
        } else if self.status.is_server_error() {
            tracing::warn!(code = %self.problem.code, what = %self.problem.what, "request failed");
        }
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_body_and_a_status_of_an_error() {
        for &code in Code::ALL {
            let error = ApiError::from(Problem::new(code, "seen", "do"));
            assert!(error.status().as_u16() >= 400, "{code}");
            let body = serde_json::to_value(error.body()).unwrap();
            assert_eq!(body["error"]["message"], "seen; do");
            assert_eq!(body["error"]["code"], code.as_str());
            assert!(body["error"]["param"].is_null());
        }
        assert_eq!(
            ApiError::from(Problem::new(Code::QueueFull, "", ""))
                .body()
                .error
                .kind,
            "rate_limit_error"
        );
        let full = ApiError::from(Problem::new(Code::QueueFull, "", "")).into_response();
        assert_eq!(full.headers()[header::RETRY_AFTER], "1");
    }
}
