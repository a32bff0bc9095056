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

// An api asks the API server. Two kinds of objects do not make it worth to link all that is known of them.
type api struct {
	dial                  dialFunc
	kubeconfig, userAgent string

	mu     sync.Mutex // guards what follows
	client *http.Client
	server *url.URL
}

// maxRefusal bounds what is read of an answer that says no.
const maxErrorBody = 64 << 10

// open reads the credentials, if that was not done.
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

// close gives up the connections that nobody uses.
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

// do sends a request. The answer is one that says yes; its body is for the caller to close.
func (a *api) do(ctx context.Context, c call) (*http.Response, error) {
	if err := a.open(); err != nil {
		return nil, err
	}
	var body io.Reader
	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return nil, fmt.Errorf("writing a request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	target := a.server.JoinPath(append([]string{"api", "v1"}, c.path...)...)
	target.RawQuery = c.query.Encode()
	req, err := http.NewRequestWithContext(ctx, c.method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
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

// bare is err without the URL, which is long and not news.
func withoutURL(err error) error {
	if long := (*url.Error)(nil); errors.As(err, &long) {
		return long.Err
	}
	return err
}

// A refusal is the API server's no.
type statusError struct {
	Code    int
	Reason  string
	Message string
	after   time.Duration // it asks for a pause
}

// Error is what the server says.
func (r *statusError) Error() string {
	if r.Message == "" {
		return "status " + strconv.Itoa(r.Code)
	}
	return r.Message
}

// refusalOf reads an answer that says no.
func readStatusError(resp *http.Response) *statusError {
	r := &statusError{}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil || json.Unmarshal(text, r) != nil {
		*r = statusError{} // a proxy's, perhaps
	}
	r.Code = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		r.after = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	return r
}

// What can be wrong with the API server, in a word.
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
	errUnreadable = errors.New("the answer makes no sense")
	errNoAnswer   = errors.New("the server does not answer")
)

// wordFor sorts an error of a request.
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

// problemOf is an error of a request for a person.
func requestError(err error, o Object) *Error {
	word := reasonOf(err)
	hint := "see how the API server is doing; it is asked again by itself"
	switch word {
	case reasonForbidden:
		hint = fmt.Sprintf("grant list and watch of configmaps in namespace %s, with resourceNames [%s], to this process; it is asked again by itself", o.Namespace, o.Name)
	case reasonUnauthorized:
		hint = "the credentials were refused: see the service account, or the file of --kubeconfig"
	case reasonUnreachable:
		hint = "see that the API server can be reached from here; it is asked again by itself"
	}
	return &Error{Err: fmt.Errorf("reading ConfigMap %s: %s: %w", o, word, err), Hint: hint, reason: word}
}

// decode reads one JSON value.
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
