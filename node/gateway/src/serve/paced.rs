//! A request's body that has to come, and to come on: first byte, then a least rate, then its end, each by its time.
//!
//! What is there at once costs nothing. From the first wait on, a body holds one of the places for bodies that are being
//! read, of which the longest silent one gives way; only a request whose body is complete asks for a place among those
//! that run.

use std::{
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use mesh_proto::{ErrorCode, MeshError};
use std::sync::Arc;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::places::{Place, Places};

/// The rate of a body is looked at this often, and its first byte has to be there by then.
const WINDOW: Duration = Duration::from_secs(5);

/// Least bytes in each later [`WINDOW`]: 13 kbit/s, a tenth of the slowest mobile links in use.
const LEAST_BYTES: u64 = 8 << 10;

/// What a body has to keep to.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// Places of those being read.
    pub(crate) bodies: Places,
    /// Time for the whole body.
    pub(crate) whole: Duration,
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// Too little came in time.
    #[error("the body did not arrive in time ({0}); send it faster, or send less")]
    Slow(String),
    /// Others wanted to be read, and nothing came of this one.
    #[error("the body stalled while others waited to be read; send it again")]
    GaveWay,
    /// All bodies being read are another's turn.
    #[error("too many bodies are being read from this address; try again shortly")]
    NoPlace,
    /// The connection, or the framing.
    #[error("the body broke off or is not framed as announced ({0}); send it again")]
    Broken(hyper::Error),
}

impl From<&BodyError> for MeshError {
    fn from(error: &BodyError) -> Self {
        let code = match error {
            BodyError::Slow(_) | BodyError::GaveWay => ErrorCode::RequestTimeout,
            BodyError::NoPlace => ErrorCode::QueueFull,
            BodyError::Broken(_) => ErrorCode::InvalidRequest,
        };
        Self::new(code, error.to_string())
    }
}

/// A body under a [`Pace`].
pub(super) struct Paced<B> {
    body: B,
    pace: Pace,
    address: IpAddr,
    connection: Arc<Place>,
    waiting: Option<Waiting>,
}

/// From the first wait on.
struct Waiting {
    place: Place,
    gives_way: Pin<Box<WaitForCancellationFutureOwned>>,
    looks: Pin<Box<Sleep>>,
    /// The whole has to be there by then.
    ends: Instant,
    /// Bytes since the last look, and how many there must be.
    came: u64,
    least: u64,
}

impl<B> Paced<B> {
    pub(super) fn new(body: B, pace: Pace, address: IpAddr, connection: Arc<Place>) -> Self {
        Self {
            body,
            pace,
            address,
            connection,
            waiting: None,
        }
    }

    fn came(&mut self, bytes: usize) {
        self.connection.heard();
        if let Some(waiting) = &mut self.waiting {
            waiting.came += bytes as u64;
            waiting.place.heard();
        }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let waiting = match &mut self.waiting {
            Some(waiting) => waiting,
            none => match self.pace.bodies.take(self.address) {
                Some(place) => none.insert(Waiting::new(place, self.pace.whole)),
                None => return Poll::Ready(BodyError::NoPlace),
            },
        };
        waiting.poll(cx, self.pace.whole)
    }
}

impl Waiting {
    fn new(place: Place, whole: Duration) -> Self {
        let ends = Instant::now() + whole;
        Self {
            gives_way: Box::pin(place.gives_way().clone().cancelled_owned()),
            place,
            looks: Box::pin(sleep_until(ends.min(Instant::now() + WINDOW))),
            ends,
            came: 0,
            least: 1,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, whole: Duration) -> Poll<BodyError> {
        if self.gives_way.as_mut().poll(cx).is_ready() {
            return Poll::Ready(BodyError::GaveWay);
        }
        loop {
            ready!(self.looks.as_mut().poll(cx));
            if Instant::now() >= self.ends {
                return Poll::Ready(BodyError::Slow(format!("{} s for all of it", whole.as_secs_f32())));
            }
            if self.came < self.least {
                let window = WINDOW.as_secs();
                let reason = format!("{} bytes in {window} s where {} are the least", self.came, self.least);
                return Poll::Ready(BodyError::Slow(reason));
            }
            (self.came, self.least) = (0, LEAST_BYTES);
            self.looks.as_mut().reset(self.ends.min(Instant::now() + WINDOW));
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                if let Some(Ok(frame)) = &frame {
                    self.came(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)))
            }
            Poll::Pending => self.poll_patience(cx).map(|error| Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn, net::Ipv4Addr};

    use tokio::{sync::mpsc, time::advance};

    use super::*;
    use crate::serve::places::Bounds;

    const WHOLE: Duration = Duration::from_secs(60);

    /// Bytes as the test sends them.
    struct Sent(mpsc::Receiver<usize>);

    impl Body for Sent {
        type Data = Bytes;
        type Error = hyper::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
            let bytes = ready!(self.0.poll_recv(cx));
            Poll::Ready(
                bytes.map(|bytes| Ok::<_, Infallible>(Frame::data(vec![0; bytes].into())).map_err(|e| match e {})),
            )
        }
    }

    fn pace(bodies: usize) -> Pace {
        let bounds = Bounds {
            all: bodies,
            per_address: bodies,
        };
        Pace {
            bodies: Places::new("bodies", bounds),
            whole: WHOLE,
        }
    }

    fn body(pace: &Pace) -> (mpsc::Sender<usize>, Paced<Sent>) {
        let (sender, sent) = mpsc::channel(64);
        let bounds = Bounds {
            all: 64,
            per_address: 64,
        };
        let address = Ipv4Addr::LOCALHOST.into();
        let connection = Places::new("connections", bounds).take(address).unwrap();
        (
            sender,
            Paced::new(Sent(sent), pace.clone(), address, Arc::new(connection)),
        )
    }

    async fn read(body: &mut Paced<Sent>) -> Result<usize, BodyError> {
        let mut bytes = 0;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_begins_ends_after_a_window() {
        let (_sender, mut body) = body(&pace(1));
        let begun = Instant::now();
        assert!(matches!(read(&mut body).await, Err(BodyError::Slow(_))));
        assert_eq!(begun.elapsed().as_secs(), WINDOW.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_ends_after_the_second_window_and_an_honest_rate_goes_on() {
        let send = |sender: mpsc::Sender<usize>, bytes: usize, times: usize| {
            tokio::spawn(async move {
                for _ in 0..times {
                    advance(Duration::from_secs(1)).await;
                    if sender.send(bytes).await.is_err() {
                        return;
                    }
                }
            })
        };
        let (sender, mut trickle) = body(&pace(1));
        let begun = Instant::now();
        let _sending = send(sender, 1, 1000);
        assert!(matches!(read(&mut trickle).await, Err(BodyError::Slow(_))));
        assert!(
            begun.elapsed() <= 2 * WINDOW + Duration::from_secs(1),
            "{:?}",
            begun.elapsed()
        );
        drop(trickle);
        let (sender, mut honest) = body(&pace(1));
        let _sending = send(sender, 4 << 10, 30);
        assert_eq!(read(&mut honest).await.unwrap(), 30 * (4 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn the_whole_has_a_limit_however_fast_it_comes() {
        let (sender, mut body) = body(&pace(1));
        let _sending = tokio::spawn(async move {
            while sender.send(64 << 10).await.is_ok() {
                advance(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        assert!(matches!(read(&mut body).await, Err(BodyError::Slow(_))));
        assert!(
            begun.elapsed() >= WHOLE && begun.elapsed() < WHOLE + WINDOW,
            "{:?}",
            begun.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_gives_way_and_one_that_is_there_needs_no_place() {
        let pace = pace(1);
        let (_stalled_sender, mut stalled) = body(&pace);
        let (sender, mut whole) = body(&pace);
        let waiting = tokio::spawn(async move { read(&mut stalled).await });
        tokio::task::yield_now().await;
        sender.send(7).await.unwrap();
        drop(sender);
        assert_eq!(read(&mut whole).await.unwrap(), 7);
        assert!(!waiting.is_finished());
        let (_sender, mut newcomer) = body(&pace);
        assert!(matches!(read(&mut newcomer).await, Err(BodyError::Slow(_))));
        assert!(matches!(waiting.await.unwrap(), Err(BodyError::GaveWay)));
    }
}
