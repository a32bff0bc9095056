// SPDX-License-Identifier: Apache-2.0

package admin

import "net"

// Limits that the tests reach.
const (
	MaxHeader     = maxHeader
	MaxConns      = maxConns
	HeaderTimeout = headerTimeout
	WriteTimeout  = writeTimeout
	IdleTimeout   = idleTimeout
	DrainTimeout  = drainTimeout
)

// Use gives the server a listener in place of Listen.
func (s *Server) Use(l net.Listener) { s.listener = l }

// RenderText is renderText.
func RenderText(data []byte) ([]byte, error) { return renderText(data) }
