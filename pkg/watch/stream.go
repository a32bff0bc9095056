// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// A stream is a watch that is not waited for without end, and that knows when each event came.
type stream struct {
	feed     *feed
	inner    apiwatch.Interface
	cancel   context.CancelFunc
	first    bool // it begins with a first list
	patience patience
	out      chan apiwatch.Event
	quit     chan struct{}
	stop     func() // closes quit, once
	done     chan struct{}

	// These belong to pump.
	listing  bool // the first list goes on
	caughtUp bool // after a first list or a bookmark: what comes now is news, not arrears

	arrivals chan arrival // of the events handed to the reflector, in their order
	listedAt time.Time    // when the end of the first list came; may be read once that was received
}

// An arrival is when an event came, and whether it proves the view right as of then.
type arrival struct {
	at     time.Time
	proves bool
}

// newStream hands on the events of inner until it is stopped or given up. cancel ends inner's request.
func newStream(ctx context.Context, f *feed, inner apiwatch.Interface, cancel context.CancelFunc, first bool, p patience) *stream {
	s := &stream{
		feed: f, inner: inner, cancel: cancel, first: first, listing: first, patience: p,
		out:  make(chan apiwatch.Event),
		quit: make(chan struct{}),
		done: make(chan struct{}),
		// One that the reflector has at hand, and one that pump holds out to it.
		arrivals: make(chan arrival, 2),
	}
	s.stop = sync.OnceFunc(func() { close(s.quit) })
	go s.pump(ctx)
	return s
}

// ResultChan implements [apiwatch.Interface].
func (s *stream) ResultChan() <-chan apiwatch.Event { return s.out }

// Stop implements [apiwatch.Interface]. It waits for the goroutine.
func (s *stream) Stop() {
	s.stop()
	<-s.done
}

// pump hands on the events.
func (s *stream) pump(ctx context.Context) {
	defer close(s.done)
	defer close(s.out)
	defer s.cancel()
	defer s.inner.Stop()
	defer func() { s.feed.streamEnded(s.caughtUp) }()
	timer := time.NewTimer(s.patience.first)
	defer timer.Stop()
	for {
		ev, ok := s.next(ctx, timer)
		if !ok || !s.note(ctx, ev, timer) {
			return
		}
		select {
		case s.out <- ev:
		case <-s.quit:
			return
		}
	}
}

// next waits for an event. It gives false if there will be none.
func (s *stream) next(ctx context.Context, timer *time.Timer) (ev apiwatch.Event, ok bool) {
	select {
	case ev, ok = <-s.inner.ResultChan():
		if !ok && s.listing {
			s.feed.failed(ctx, errCut)
		}
		return ev, ok
	case <-s.quit:
		return ev, false
	case <-timer.C:
	}
	select {
	case ev, ok = <-s.inner.ResultChan(): // it was there all the time, only this side was slow
		return ev, ok
	default:
	}
	if s.first && s.caughtUp && s.patience.next < s.feed.pace.limit {
		return ev, false // not frozen: a watch with a bookmark in time takes over
	}
	s.feed.hangUp()
	if !s.listing {
		s.feed.failed(ctx, errFrozen)
		return ev, false // the reflector goes on from where it is
	}
	// The end of the stream would have the reflector ask for the same again at once. An error has it wait.
	status := metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
		Message: fmt.Sprintf("the first list paused for %s", s.patience.first),
	}
	return apiwatch.Event{Type: apiwatch.Error, Object: &status}, true
}

// note takes account of an event before it is handed on. It gives false for one that ends the stream in its place.
func (s *stream) note(ctx context.Context, ev apiwatch.Event, timer *time.Timer) bool {
	at := s.feed.now()
	switch {
	case ev.Type == apiwatch.Error:
		err := apierrors.FromObject(ev.Object)
		s.feed.failed(ctx, err)
		if !s.listing {
			return !s.feed.unreadable(err)
		}
		s.feed.listError = err
	case s.listing && isListEnd(ev):
		s.listing, s.caughtUp, s.listedAt = false, true, at
		timer.Reset(s.patience.next)
	case s.listing:
		timer.Reset(s.patience.first)
	default:
		s.noteNews(ev, at, timer)
	}
	return true
}

// noteNews takes account of an event after the first list.
func (s *stream) noteNews(ev apiwatch.Event, at time.Time, timer *time.Timer) {
	s.feed.garbled = false
	if ev.Type == apiwatch.Bookmark {
		s.caughtUp = true
	}
	if s.caughtUp {
		timer.Reset(s.patience.next)
	}
	if !s.feed.knows(ev.Object) {
		return // the reflector drops it
	}
	select {
	case s.arrivals <- arrival{at: at, proves: s.caughtUp}:
	default: // of an event of no known type the reflector takes none
	}
}

// isListEnd says whether ev is the bookmark after a first list.
func isListEnd(ev apiwatch.Event) bool {
	if ev.Type != apiwatch.Bookmark {
		return false
	}
	m, err := meta.Accessor(ev.Object)
	return err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
