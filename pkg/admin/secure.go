// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
)

// Secure configures a second address, for clients of the network. Pages that name no pod and no query are then for its clients,
// and on the first address for those with the token.
type Secure struct {
	Addr netip.AddrPort // port 0: the kernel chooses
	TLS  *tls.Config    // with a certificate
	// Authorize decides about each request of a client at an address. It may block for some seconds. A page that needs the token of
	// this process, or the unix socket, needs it here too.
	Authorize func(r *http.Request, client netip.Addr) Verdict
}

// A Verdict is why a request is refused, as the status and the text of a reply. The zero value allows it.
type Verdict struct {
	Code int
	Why  string
}

// Allowed reports whether the request may be served.
func (v Verdict) Allowed() bool { return v.Code == 0 }

var errGone = errors.New("closed for another connection")

// authorizedKey is the key of a context whose request Authorize has allowed.
type authorizedKey struct{}

// isAuthorized reports whether authorize has allowed a request to Secure.
func isAuthorized(r *http.Request) bool { return r.Context().Value(authorizedKey{}) != nil }

// authorize decides about a request to Secure. It allows others.
func (s *Server) authorize(r *http.Request) (*http.Request, Verdict) {
	if r.TLS == nil {
		return r, Verdict{}
	}
	v := s.cfg.Secure.Authorize(r, clientOf(r))
	if v.Allowed() {
		r = r.WithContext(context.WithValue(r.Context(), authorizedKey{}, true))
	}
	return r, v
}

// refuse replies that a request to Secure is not allowed.
func refuse(w http.ResponseWriter, v Verdict) {
	switch v.Code {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "10")
	}
	http.Error(w, v.Why, v.Code)
}

// secured returns a listener of TLS connections.
func (s *Server) secured(l net.Listener) net.Listener {
	cfg := s.cfg.Secure.TLS.Clone()
	cfg.NextProtos = []string{"http/1.1"} // one request at a time on a connection: the limits count connections
	cfg.GetConfigForClient = s.requestThrottle.admitHandshake
	return tls.NewListener(l, cfg)
}

// admitHandshake delays a handshake while others have exceeded their share of a CPU. The configuration stays: it returns none.
func (t *throttle) admitHandshake(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if !t.waitFor(hello.Context(), handshakes) {
		return nil, errGone
	}
	t.add(handshakes, handshakeCost)
	return nil, nil //nolint:nilnil // crypto/tls says so
}

// errorLog returns the log of net/http. Failed handshakes are at level debug: any client can cause them.
func errorLog(handler slog.Handler) *log.Logger {
	warn, debug := slog.NewLogLogger(handler, slog.LevelWarn), slog.NewLogLogger(handler, slog.LevelDebug)
	return log.New(logWriter(func(line []byte) {
		to := warn
		if bytes.HasPrefix(line, []byte("http: TLS handshake error ")) {
			to = debug
		}
		to.Print(string(bytes.TrimSpace(line)))
	}), "", 0)
}

// A logWriter gets each line of a log.
type logWriter func(line []byte)

// Write implements [io.Writer].
func (w logWriter) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}
