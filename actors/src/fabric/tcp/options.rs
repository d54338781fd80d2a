//! Socket options of connections to other processes.

use crate::copy::schedule::Class;
use crate::fabric::stream::Stream;
use crate::runtime::net::Net;
use socket2::{SockRef, TcpKeepalive};
use std::time::Duration;

/// An idle connection is probed this often; three lost probes end it.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Sets a control connection up: frames are small, and each is waited for.
pub(crate) fn tune_control(tcp: &tokio::net::TcpStream, net: &Net) {
    let socket = SockRef::from(tcp);
    if let Err(error) = socket.set_tcp_nodelay(true) {
        tracing::warn!(%error, "TCP_NODELAY was not set");
    }
    set_congestion(&socket, net);
}

/// One that was asked for and is not allowed is logged; the preferred one is tried in silence.
fn set_congestion(socket: &SockRef<'_>, net: &Net) {
    let name = net
        .congestion
        .as_deref()
        .unwrap_or(Net::PREFERRED_CONGESTION);
    if let Err(error) = socket.set_tcp_congestion(name.as_bytes())
        && net.congestion.is_some()
    {
        tracing::warn!(name, %error, "this congestion control is not to be had; the system's is used");
    }
}

/// Sets a connection up for its class. What the kernel does not allow is logged and left as it is.
pub(crate) fn tune(stream: &Stream, class: Class, net: &Net) {
    let Stream::Tcp(tcp) = stream else { return };
    let socket = SockRef::from(tcp);
    let said = |what: &str, result: std::io::Result<()>| {
        if let Err(error) = result {
            tracing::warn!(what, %error, "a socket option was not set; the system's value is used");
        }
    };
    said("TCP_NODELAY", socket.set_tcp_nodelay(true));
    set_congestion(&socket, net);
    // A path that is gone is found out on an idle connection too.
    let alive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    said(
        "keepalive",
        socket.set_tcp_keepalive(&alive.with_retries(3)),
    );
    let buffer = match class {
        Class::Interactive => net.interactive_buffer,
        Class::Bulk => net.buffer,
    };
    if let Some(bytes) = buffer {
        said("SO_SNDBUF", socket.set_send_buffer_size(bytes as usize));
        said("SO_RCVBUF", socket.set_recv_buffer_size(bytes as usize));
    }
}
