// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net"
)

// SetDial has the connections to the API server made by dial.
func (cfg *Config) SetDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	cfg.dial = dial
}
