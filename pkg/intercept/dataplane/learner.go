// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// learnerTable is the table with which kube-network-policies takes DNS replies into a queue, to learn the addresses of names in policies.
// The engine writes it anew when it starts, and every 30 s.
const learnerTable = "kube-network-policies-dnscache"

// HasLearner reports whether a policy engine of this node learns names from the DNS replies that pods get.
func HasLearner() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("opening netlink: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("listing tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == learnerTable {
			return true, nil
		}
	}
	return false, nil
}

// WatchLearner calls began whenever the engine of [HasLearner] may have forgotten all names because it started anew, until ctx ends. It
// returns nil then, else an error that ended it before. It calls began at its own begin, too.
func WatchLearner(ctx context.Context, began func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("watching nftables: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for began(); ; {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // events were lost
			began()
		case err != nil:
			return fmt.Errorf("watching nftables: %w", err)
		}
		for _, m := range messages {
			if isLearnerTable(m) {
				began()
			}
		}
	}
}

// isLearnerTable reports whether a message is about a new table of the engine's name.
func isLearnerTable(m netlink.Message) bool {
	const header = 4 // of nfnetlink
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE || len(m.Data) < header {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return false
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME {
			return attributes.String() == learnerTable
		}
	}
	return false
}
