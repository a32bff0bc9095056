// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/watch"
)

// An api has the client of the API server, as soon as there are credentials.
type api struct {
	dial                  func(kubeconfig, userAgent string) (*watch.Client, error)
	kubeconfig, userAgent string

	mu     sync.Mutex // guards client
	client *watch.Client
}

// open returns the client. It reads the credentials, unless that was done.
func (a *api) open() (*watch.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == nil {
		client, err := a.dial(a.kubeconfig, a.userAgent)
		if err != nil {
			return nil, err
		}
		a.client = client
	}
	return a.client, nil
}

// close closes the idle connections.
func (a *api) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.Client.CloseIdleConnections()
	}
}

// Reasons for failed requests.
const (
	reasonForbidden    = "forbidden"
	reasonUnauthorized = "unauthorized"
	reasonHistory      = "history lost"
	reasonBusy         = "busy"
	reasonServer       = "server error"
	reasonUnreadable   = "unreadable"
	reasonUnreachable  = "unreachable"
)

var (
	errUnreadable = errors.New("invalid answer")
	errNoAnswer   = errors.New("the server does not answer")
)

// reasonOf classifies an error of a request.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errUnreadable), apierrors.HasStatusCause(err, "ClientWatchDecoding"):
		return reasonUnreadable
	case statusCode(err) == 0:
		return reasonUnreachable
	case apierrors.IsForbidden(err):
		return reasonForbidden
	case apierrors.IsUnauthorized(err):
		return reasonUnauthorized
	case apierrors.IsGone(err), apierrors.IsResourceExpired(err):
		return reasonHistory
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err):
		return reasonBusy
	default:
		return reasonServer
	}
}

// statusCode returns the code of an error response of the API server, 0 for any other error.
func statusCode(err error) int {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return max(1, int(status.Status().Code))
	}
	return 0
}

// shortened returns the error of a request without its long URL, and with a long text of the server cut.
func shortened(err error) error {
	if long := (*url.Error)(nil); errors.As(err, &long) {
		err = long.Err
	}
	return remote.Error(err)
}

// requestError returns the error of a request with a hint.
func requestError(err error, o types.NamespacedName) *hint.Error {
	reason := reasonOf(err)
	advice := "check the API server; the agent retries by itself"
	switch reason {
	case reasonForbidden:
		advice = fmt.Sprintf("grant list and watch of configmaps in namespace %s, with resourceNames [%s], to this process; the agent retries by itself", o.Namespace, o.Name)
	case reasonUnauthorized:
		advice = "check the service account, or the file of --kubeconfig: the credentials were refused"
	case reasonUnreachable:
		advice = "check that this host can reach the API server; the agent retries by itself"
	}
	return &hint.Error{Err: fmt.Errorf("reading ConfigMap %s: %s: %w", o, reason, shortened(err)), Hint: advice}
}

const (
	// The pauses between attempts double from the first to the last. The last pause is short, as for the watches of the
	// cluster, so that an edit made during an outage is applied soon after it.
	firstBackoff = 500 * time.Millisecond
	lastBackoff  = 5 * time.Second

	// deniedBackoff is the last pause if the server denies the request: permissions change at any time, but rarely. A server
	// that has just started also denies requests for a moment.
	deniedBackoff = 20 * time.Second

	maxRetryAfter = 30 * time.Second // the longest pause that a server may request
)

// pauseAfter returns the pause after an error: at least as long as the server requests.
func pauseAfter(p *retry.Backoff, err error) time.Duration {
	p.First, p.Last = firstBackoff, lastBackoff
	if word := reasonOf(err); word == reasonForbidden || word == reasonUnauthorized {
		p.Last = deniedBackoff
	}
	d := p.Next()
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		requested := retry.Backoff{First: time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second, Last: maxRetryAfter}
		d = max(d, requested.Next())
	}
	return d
}
