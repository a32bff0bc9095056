// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	// The pauses between attempts double from firstPause to lastPause, each with up to half of it added. The last pause is
	// short so that changes flow again within 8 s of a long outage. It costs 5,000 agents with three kinds
	// 2,400 attempts a second in total: a server that is down does not see them, and one that is up sees each once.
	firstPause = 800 * time.Millisecond
	lastPause  = 5 * time.Second

	// refusedPause follows a refusal by the server. Permissions can change at any time, but rarely do.
	refusedPause = 30 * time.Second

	// requestsPerSecond bounds the requests of this process for one resource. The burst is requestBurst plus one for each feed of
	// the resource: an old server needs two requests at the start. The pages of one list count as one request.
	requestsPerSecond = 1
	requestBurst      = 1

	// With a server that answers only every other request, a feed fails and recovers again and again. After flipBurst failures, the
	// log has one failure and its recovery per flipEvery.
	flipBurst = 4
	flipEvery = 30 * time.Second
)

// A feed passes the objects of one kind, in one namespace or all, to a target.
type feed struct {
	query          query
	target         target
	status         *kindStatus
	feedStatus     *feedStatus
	limiter        *rate.Limiter // shared by the feeds of one resource
	logs           *rate.Limiter // limits the log lines about failures
	confirmAfter   time.Duration // age after which a quiet state is confirmed actively
	confirmTimeout time.Duration // timeout of the request for that
	maxList        int64         // most bytes of a plain list
	conns          *connTracker
	guard          panics.Guard
	onSynced       func() // called once: the first list is complete, or the server forbids it
	log            *slog.Logger
	now            func() time.Time

	// highest is the newest resource version in any object or bookmark received. It keeps the store from going back
	// when another server, whose cache is behind, answers next.
	highest atomic.Uint64

	logged atomic.Bool // a failure was logged, and its recovery was not

	// The remaining fields belong to the reflector's goroutine, and to its stream while there is one.
	stream         *stream
	restarted      bool      // a watch was started before
	listAsked      time.Time // when the last plain list was requested
	listLeft       int64     // bytes that the remaining pages of that list may have
	listPages      int       // pages of that list so far
	listError      error     // error of the last watch with a first list
	failures       int       // failed watches with a first list, in a row
	missing        int       // requests in a row for API versions that the server does not have
	unconfirmed    int       // short watches that ended without confirmation, in a row
	behind         bool      // the server is known to have a newer version
	rolledBack     bool      // the server is at an older version than it reported before
	lastUnreadable bool      // the last message of the last watch could not be decoded
	notBefore      time.Time // the server requested a pause until then
}

// run feeds the target until ctx ends.
func (f *feed) run(ctx context.Context) {
	logger := logr.Discard() // this package logs the relevant events itself, once
	ctx = klog.NewContext(ctx, logger)
	lw := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.openWatch}
	r := cache.NewReflectorWithOptions(lw, f.query.example, sink{f}, cache.ReflectorOptions{
		Logger:          &logger,
		Name:            f.query.resource,
		TypeDescription: f.query.resource,
		Backoff:         &wait.Backoff{Duration: firstPause, Factor: 2, Jitter: 0.5, Cap: lastPause, Steps: 10},
		Clock:           cancelableClock{done: ctx.Done()},
	})
	pause := retry.Backoff{First: firstPause, Last: lastPause}
	refused := retry.Backoff{First: refusedPause, Last: refusedPause}
	for {
		pause.Begin()                                                                  // the attempt includes waiting for a pause that the server requested (Retry-After)
		err := f.guard.Do(ctx, func() error { return r.ListAndWatchWithContext(ctx) }) // failures other than panics are recorded already
		if errors.Is(err, panics.Err) {
			f.failed(ctx, err)
		}
		rest := pause.Next()
		switch reason := reasonOf(err); {
		case f.isAbsent():
			rest = min(refused.Next(), f.confirmAfter)
		case err != nil && (reason == reasonForbidden || reason == reasonUnauthorized):
			rest = refused.Next()
		}
		if retry.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// failed records an error, and logs it if its reason is new.
func (f *feed) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // this process stopped the request
	}
	reason, err := reasonOf(err), remote.Error(err)
	news, settled := f.status.failed(f.feedStatus, reason, remote.Text(fmt.Sprintf("%s: %v", reason, err)))
	if settled {
		f.onSynced()
	}
	if news && f.logs.AllowN(f.now(), 1) {
		f.logged.Store(true)
		level := slog.LevelWarn
		if reason == reasonExpired {
			level = slog.LevelDebug // a restarting server causes this
		}
		f.log.Log(ctx, level, "watch failed", "resource", f.query.resource, "namespace", f.query.namespace, "reason", reason, "err", err)
	}
}

// confirmed records that the server confirmed the state at that time.
func (f *feed) confirmed(ctx context.Context, at time.Time) {
	settled, healed := f.status.confirmed(f.feedStatus, at)
	if settled {
		f.onSynced()
	}
	if healed && f.logged.Swap(false) {
		f.log.InfoContext(ctx, "watch recovered", "resource", f.query.resource, "namespace", f.query.namespace)
	}
}

// streamEnded counts the short watches in a row that ended without a confirmation of the state.
func (f *feed) streamEnded(short, proved bool) {
	switch {
	case proved:
		f.unconfirmed = 0
	case short:
		f.unconfirmed++
	}
}

// unreadable reports whether err is a decoding error that did not follow another decoding error. The next watch then resumes after
// the last event: a connection that broke within an event lost nothing. After a second such error, a new list is read.
func (f *feed) unreadable(err error) bool {
	again := f.lastUnreadable
	f.lastUnreadable = apierrors.HasStatusCause(err, causeUnreadable)
	return f.lastUnreadable && !again
}

// closeSilentConns closes the connections that may have caused a silent watch.
func (f *feed) closeSilentConns() {
	f.conns.closeSilentSince(f.now().Add(-f.confirmTimeout))
}

// noteVersion parses a resource version and records it if it is the highest. ok is false if it is not a number.
func (f *feed) noteVersion(resourceVersion string) (version uint64, ok bool) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, false
	}
	if version > f.highest.Load() {
		f.highest.Store(version)
	}
	return version, true
}

var (
	errSilent      = errors.New("the watch is open but sent no event or bookmark in time")
	errNoAnswer    = errors.New("the server does not answer")
	errListEnded   = errors.New("the server closed the watch before its first list was complete")
	errUnconfirmed = errors.New("the server sent no bookmark, or its history was rolled back")
	errUnrequested = errors.New("the server sent an object that was not requested")
)

// Reasons that KindStats.LastError begins with.
const (
	reasonForbidden    = "forbidden"    // no RBAC rule allows it
	reasonUnauthorized = "unauthorized" // the credentials were refused
	reasonExpired      = "history lost" // 410: the list is read again
	reasonBusy         = "busy"         // 429
	reasonSilent       = "frozen"
	reasonUnreadable   = "unreadable" // garbage, a broken connection, or an oversized message
	reasonUnreachable  = "unreachable"
	reasonInternal     = "internal"
	reasonServer       = "server error"
)

// causeUnreadable is the cause that client-go sets on its own errors while it reads a watch.
const causeUnreadable = "ClientWatchDecoding"

// reasonOf classifies an error. Errors of one reason are logged once: their texts may differ in a port.
func reasonOf(err error) string {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsForbidden(err):
		return reasonForbidden
	case apierrors.IsUnauthorized(err):
		return reasonUnauthorized
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return reasonExpired
	case apierrors.IsTooManyRequests(err):
		return reasonBusy
	case errors.Is(err, errSilent), errors.Is(err, errUnconfirmed), errors.Is(err, errNoPodList):
		return reasonSilent
	case errors.Is(err, panics.Err):
		return reasonInternal
	case apierrors.HasStatusCause(err, causeUnreadable), errors.Is(err, errLongList), errors.Is(err, errUnrequested),
		errors.Is(err, errPodMessage), errors.Is(err, errManyMessages), errors.Is(err, errManyPods):
		return reasonUnreadable
	case errors.As(err, &status), errors.Is(err, errCallEnded):
		return reasonServer
	default:
		return reasonUnreachable
	}
}

// listMayHelp reports whether a plain list can succeed where a watch with a first list failed that many times in a row.
// A server without support for such watches answers with a client error or an internal error, and a plain list works.
// If the server is down, overloaded or refuses, a second and more expensive request does not help.
func listMayHelp(err error, failures int) bool {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), utilnet.IsConnectionRefused(err):
		return false
	case failures >= 3:
		return true // some proxies and servers fail only at streams
	case apierrors.HasStatusCause(err, causeUnreadable), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return false
	default:
		return errors.As(err, &status)
	}
}
