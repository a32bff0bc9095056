// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// An audience says which clients may request a page. The address of a client is no proof: a relay on this host, such as an ingress
// controller or the API server, connects like a local client, and need not say for whom it asks.
type audience uint8

const (
	open       audience = iota // everybody who reaches the port
	general                    // the page names no pod and no query: as open, but with Config.Secure as withToken, except for the clients of Secure
	withToken                  // clients with the token, and those of the unix socket: the page names pods or queries
	socketOnly                 // clients of the unix socket, whose file mode controls access: the page changes or profiles the agent
)

// tokenParameter is the URL parameter with the token. A browser would send a cookie to all ports of a host, also when another site asks.
const tokenParameter = "token"

var (
	errHost   = errors.New("unknown host name\nhint: use an IP address or localhost, or add the name to admin.hosts")
	errSite   = errors.New("a browser sent this request for another site\nhint: open the page / itself")
	errToken  = errors.New("this page needs the token of this process\nhint: open what `node-cache page` prints, or use the unix socket admin.socket")
	errSecure = errors.New("this page needs the token of this process, or the address admin.tls\nhint: open what `node-cache page` prints, or use the unix socket admin.socket")
	errSocket = errors.New("this page is on the unix socket only\nhint: use --admin unix:PATH, or curl --unix-socket PATH, with the path of admin.socket")
)

// An accessControl decides which requests are served.
type accessControl struct {
	hosts       []string // Config.Hosts
	token       string   // random, new in each process
	secure      bool     // Config.Secure is set
	crossOrigin http.CrossOriginProtection
}

// allow returns a handler that serves page to the clients of an audience, and refuses others.
func (c *accessControl) allow(a audience, page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case isSocket(r), a == open, a == general && (!c.secure || r.TLS != nil), a != socketOnly && c.hasToken(r):
			page(w, r)
		case a == general:
			http.Error(w, errSecure.Error(), http.StatusForbidden)
		case a == withToken:
			http.Error(w, errToken.Error(), http.StatusForbidden)
		default:
			http.Error(w, errSocket.Error(), http.StatusForbidden)
		}
	}
}

// seesQueries reports whether a client may see the names of pods and queries.
func (c *accessControl) seesQueries(r *http.Request) bool { return isSocket(r) || c.hasToken(r) }

// hasToken reports whether a request has the token. The comparison takes the same time for all wrong tokens.
func (c *accessControl) hasToken(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.URL.Query().Get(tokenParameter)), []byte(c.token)) == 1
}

// checkBrowser refuses a request over TCP that a website may have caused: to a host name of the website that resolves to this
// server (DNS rebinding), or from one of its pages. Browsers cannot open the unix socket.
func (c *accessControl) checkBrowser(r *http.Request) error {
	if isSocket(r) || r.TLS != nil { // a browser sends no Authorization header for another site
		return nil
	}
	if !c.isKnownHost(r.Host) {
		return errHost
	}
	like := r.WithContext(r.Context())
	like.Method = http.MethodPost // CrossOriginProtection allows every GET; but a GET that another site causes costs CPU time here
	if c.crossOrigin.Check(like) != nil && !isLink(r) {
		return errSite
	}
	return nil
}

// isLink reports whether a browser opens the page / by a link or its address, and not in a frame.
func isLink(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Origin") == "" &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// isKnownHost reports whether a Host header is empty, an address, localhost, or a configured name, with or without a port.
func (c *accessControl) isKnownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || host == "localhost" || slices.Contains(c.hosts, host) {
		return true
	}
	_, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil
}

// isSocket reports whether a request came over the unix socket.
func isSocket(r *http.Request) bool {
	_, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

// pageURL returns the address of the page / for browsers, with the token.
func (s *Server) pageURL(url.Values) (any, error) {
	at := s.Addr()
	if !at.IsValid() || s.cfg.Front == nil {
		return nil, errors.New("there is no page for browsers\nhint: set admin.address")
	}
	u := url.URL{Scheme: "http", Host: at.String(), Path: "/", RawQuery: tokenParameter + "=" + s.access.token}
	if at.Addr().IsUnspecified() {
		_, port, _ := net.SplitHostPort(u.Host)
		u.Host = net.JoinHostPort("localhost", port)
	}
	return map[string]string{"url": u.String()}, nil
}
