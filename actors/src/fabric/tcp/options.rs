//! Socket options of data connections.

use crate::copy::schedule::Class;
use crate::fabric::stream::Stream;
use crate::runtime::net::Net;
use socket2::SockRef;

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
    if let Some(name) = &net.congestion {
        said(name, socket.set_tcp_congestion(name.as_bytes()));
    }
    let buffer = match class {
        Class::Interactive => net.interactive_buffer,
        Class::Bulk => net.buffer,
    };
    if let Some(bytes) = buffer {
        said("SO_SNDBUF", socket.set_send_buffer_size(bytes as usize));
        said("SO_RCVBUF", socket.set_recv_buffer_size(bytes as usize));
    }
}
