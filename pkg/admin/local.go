// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

var errHost = errors.New("unknown host name\nhint: use an IP address or localhost, or add the name to admin.hosts")

// here serves a page to clients on this machine only.
//
// A browser on this machine, or at the end of a `kubectl port-forward`, is such a client too, and any site that it shows
// can make it ask. So what a browser says of itself counts: it changes nothing.
func here(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := checkHere(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		page(w, r)
	}
}

// checkHere says why a request may not have a page for clients on this machine, and
// what to do about it.
func checkHere(r *http.Request) error {
	if isSocket(r) {
		return nil // no browser opens one, and its mode says who may
	}
	if !isLocal(r) {
		return errors.New("this page is for clients on this host\nhint: run the request on the node, or through `kubectl port-forward`")
	}
	if r.Method == http.MethodPost && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") {
		return errors.New("browsers may not change anything here\nhint: use `node-cache cache flush` or curl")
	}
	return nil
}

// isSocket tells whether a request came over the unix socket.
func isSocket(r *http.Request) bool {
	_, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

// isLocal tells whether a request came from a loopback address, or from the very
// address of this machine that it was sent to. No other machine can do that: the
// second packet of the handshake would not leave this one.
func isLocal(r *http.Request) bool {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from := client.Addr().Unmap()
	server, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return from.IsLoopback() || ok && from == server.AddrPort().Addr().Unmap()
}

// isKnownHost reports whether the Host header of a request is an address, localhost or a name of the configuration, with
// or without a port, or empty. A site can point any other name at this server, and then the browsers that show the site
// let it read what is served here. No browser opens the unix socket.
func (s *Server) isKnownHost(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || host == "localhost" || isSocket(r) || slices.Contains(s.cfg.Hosts, host) {
		return true
	}
	_, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil
}
