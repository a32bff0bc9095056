// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net"
)

// SetDial sets the function that opens connections to the API server.
func (cfg *Config) SetDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	cfg.dial = dial
}
