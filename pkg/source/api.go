// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An api sends requests to the API server. For two kinds of objects, client-go would link too much.
type api struct {
	dial                  dialFunc
	kubeconfig, userAgent string

	mu     sync.Mutex // guards what follows
	client *http.Client
	server *url.URL
}

// maxErrorBody bounds the body that is read of an error response.
const maxErrorBody = 64 << 10

// open reads the credentials, unless that was done.
func (a *api) open() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return nil
	}
	client, server, err := a.dial(a.kubeconfig, a.userAgent)
	if err != nil {
		return err
	}
	a.client, a.server = client, server
	return nil
}

// close closes the idle connections.
func (a *api) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
}

// A call is one request.
type call struct {
	method string
	path   []string // below /api/v1
	query  url.Values
	kind   string // content type of body
	body   any    // encoded as JSON; nil: none
}

// do sends a request. It returns a successful response, whose body the caller closes, or an error.
func (a *api) do(ctx context.Context, c call) (*http.Response, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	var body io.Reader
	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	target := a.server.JoinPath(append([]string{"api", "v1"}, c.path...)...)
	target.RawQuery = c.query.Encode()
	req, err := http.NewRequestWithContext(ctx, c.method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("creating a request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", c.kind)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, readStatusError(resp)
}

// withoutURL returns err without the long URL that it contains.
func withoutURL(err error) error {
	if long := (*url.Error)(nil); errors.As(err, &long) {
		return long.Err
	}
	return err
}

// A statusError is an error response of the API server.
type statusError struct {
	Code    int
	Reason  string
	Message string
	after   time.Duration // requested by Retry-After
}

// Error returns the server's message.
func (r *statusError) Error() string {
	if r.Message == "" {
		return "status " + strconv.Itoa(r.Code)
	}
	return r.Message
}

// readStatusError reads an error response.
func readStatusError(resp *http.Response) *statusError {
	r := &statusError{}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || json.Unmarshal(text, r) != nil {
		*r = statusError{} // possibly from a proxy
	}
	r.Code = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		r.after = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	return r
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
	no := (*statusError)(nil)
	switch {
	case errors.Is(err, errUnreadable):
		return reasonUnreadable
	case !errors.As(err, &no):
		return reasonUnreachable
	case no.Code == http.StatusForbidden:
		return reasonForbidden
	case no.Code == http.StatusUnauthorized:
		return reasonUnauthorized
	case no.Code == http.StatusGone:
		return reasonHistory
	case no.Code == http.StatusTooManyRequests, no.Code == http.StatusServiceUnavailable:
		return reasonBusy
	default:
		return reasonServer
	}
}

// requestError returns the error of a request with a hint.
func requestError(err error, o Object) *Error {
	word := reasonOf(err)
	hint := "check the API server; the agent retries by itself"
	switch word {
	case reasonForbidden:
		hint = fmt.Sprintf("grant list and watch of configmaps in namespace %s, with resourceNames [%s], to this process; the agent retries by itself", o.Namespace, o.Name)
	case reasonUnauthorized:
		hint = "check the service account, or the file of --kubeconfig: the credentials were refused"
	case reasonUnreachable:
		hint = "check that this host can reach the API server; the agent retries by itself"
	}
	return &Error{Err: fmt.Errorf("reading ConfigMap %s: %s: %w", o, word, err), Hint: hint, reason: word}
}

// decode decodes one JSON value.
func decode(d *json.Decoder, into any) error {
	err := d.Decode(into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax), errors.As(err, &kind), err != nil && strings.HasPrefix(err.Error(), "json: "):
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return err
}
