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

// localOnly serves a page to clients on this host only.
//
// A browser on this host, or behind `kubectl port-forward`, is such a client too, and any website can make it
// send requests. So requests that browsers mark as their own must not change anything.
func localOnly(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := checkLocal(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		page(w, r)
	}
}

// checkLocal returns why a request may not access a page for local clients, and a hint.
func checkLocal(r *http.Request) error {
	if isSocket(r) { // browsers cannot open it, and its mode controls access
		return nil
	}
	if !isLocal(r) {
		return errors.New("this page is for clients on this host\nhint: run the request on the node, or through `kubectl port-forward`")
	}
	if r.Method == http.MethodPost && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") {
		return errors.New("browsers may not change anything here\nhint: use the command node-cache or curl")
	}
	return nil
}

// isSocket reports whether a request came over the unix socket.
func isSocket(r *http.Request) bool {
	_, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

// isLocal reports whether a request came from a loopback address, or from the address of this host that it
// was sent to. No other host can do that: the second packet of its handshake would not leave this host.
func isLocal(r *http.Request) bool {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from := client.Addr().Unmap()
	server, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return from.IsLoopback() || ok && from == server.AddrPort().Addr().Unmap()
}

// isKnownHost reports whether the Host header of a request is empty, an address, localhost, or a configured
// name, with or without a port. A website can point any other name at this server (DNS rebinding), and could
// then read the pages through its visitors' browsers. Browsers cannot open the unix socket.
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
