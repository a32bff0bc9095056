// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"
)

// ErrNobody says that no agent listens at the path.
var ErrNobody = errors.New("nobody listens there")

// dial connects to whoever listens at path.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, saying)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, ErrNobody
	case err != nil:
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Alive tells whether an agent listens at the path, if only one that is asked more than it
// can hear.
func Alive(ctx context.Context, path string) bool {
	c, err := dial(ctx, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || errors.Is(err, syscall.EAGAIN)
}
