// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/nftables"
)

// trace traces the packets from and to the client src through the nftables of this network namespace while send runs.
// It returns the places that dropped or rejected them, each once, in order. It does not see drops by iptables-legacy or
// by the kernel itself. It needs the capability NET_ADMIN.
func trace(ctx context.Context, src netip.Addr, send func(context.Context) error, now func() time.Time) (drops []Drop, err error) {
	tracer, err := nftables.NewTracer(src)
	if err != nil {
		return nil, fmt.Errorf("tracing packets: %w", err)
	}
	sent := send(ctx)
	found, err := tracer.Drops(now)
	for _, d := range found {
		drops = append(drops, Drop(d))
	}
	return drops, errors.Join(sent, err, tracer.Close())
}
