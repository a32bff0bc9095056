// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed at the start, and when another process changes a table that an
// Apply of this backend writes, or when the kernel could not tell, until ctx ends. It
// returns nil then.
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	b.watching.Lock()
	defer b.watching.Unlock()
	conn := b.events.conn
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return explain("watching rules", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // long ago: whoever reads stops
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
		_ = conn.LeaveGroup(unix.NFNLGRP_NFTABLES)
		_ = conn.SetReadDeadline(time.Time{})
	}()

	changed()
	for ctx.Err() == nil {
		messages, err := conn.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, unix.ENOBUFS):
			changed() // events were lost
			continue
		case err != nil:
			return fmt.Errorf("watching rules: %w", err)
		}
		if b.concerns(messages) {
			changed()
		}
	}
	return nil
}

// concerns reports whether others did something to what Apply wrote.
func (b *Backend) concerns(messages []netlink.Message) bool {
	own := ""
	if t := b.table.Load(); t != nil {
		own = *t
	}
	for _, m := range messages {
		if m.Header.PID == b.writer.conn.PID() {
			continue
		}
		if name := tableOf(m.Data); name == fallbackTable || name != "" && name == own {
			return true
		}
	}
	return false
}
