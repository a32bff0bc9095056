// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// askTimeout bounds one query. Round trips between namespaces take microseconds, except on a busy machine.
const askTimeout = 3 * time.Second

// askName is the name that clients ask for.
const askName = "who.nodetest.test"

// Ask sends one query from host h, from a new port, over "udp" or "tcp", and returns the name of the server that
// answers. A lost query is a timeout (os.ErrDeadlineExceeded).
func Ask(h *Host, addr netip.AddrPort, network string) (who string, err error) {
	return AskName(h, addr, network, askName)
}

// AskName is [Ask] for a given name.
func AskName(h *Host, addr netip.AddrPort, network, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := h.Dial(ctx, network, addr.String())
	if err != nil {
		return "", fmt.Errorf("asking %s from %s: %w", addr, h.Name, err)
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	const id = 0x4e43
	query := appendQuery([]byte{0, 0}, id, name)
	binary.BigEndian.PutUint16(query, uint16(len(query)-2))
	answer := make([]byte, 65536)
	var n int
	if network[0] == 't' {
		if _, err = c.Write(query); err == nil {
			n, err = readMessage(c, answer)
		}
	} else if _, err = c.Write(query[2:]); err == nil {
		n, err = c.Read(answer)
	}
	if err != nil {
		return "", fmt.Errorf("asking %s from %s: %w", addr, h.Name, err)
	}
	if n < headerLen || binary.BigEndian.Uint16(answer) != id {
		return "", fmt.Errorf("asking %s from %s: %w", addr, h.Name, errMessage)
	}
	return serverName(answer[:n])
}
