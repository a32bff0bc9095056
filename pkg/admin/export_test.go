// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net"
	"net/http"
	"syscall"
)

// Limits that the tests reach.
const (
	MaxHeader     = maxHeader
	MaxConns      = maxConns
	MaxPages      = maxPages
	MaxProfiles   = maxProfiles
	HeaderTimeout = headerTimeout
	WriteTimeout  = writeTimeout
	IdleTimeout   = idleTimeout
	DrainTimeout  = drainTimeout
)

// Use gives the server a listener in place of Listen.
func (s *Server) Use(l net.Listener) {
	s.plain.gate = newGate(l)
	s.plain.gate.open()
}

// UseSecure is Use for Config.Secure.
func (s *Server) UseSecure(l net.Listener) {
	s.secure.gate = newGate(l)
	s.secure.gate.open()
}

// Raw returns the socket of Config.Addr.
func (s *Server) Raw() syscall.RawConn {
	for _, raw := range s.Sockets() {
		return raw
	}
	return nil
}

// Token returns the token of the pages that need one.
func (s *Server) Token() string { return s.access.token }

// Guard wraps the handler of every request.
func (s *Server) Guard(next http.Handler) http.Handler { return s.guard(next) }

// RenderText is renderText.
func RenderText(data []byte) ([]byte, error) { return renderText(data) }
