// SPDX-License-Identifier: Apache-2.0

package nodelab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// askTimeout is how long Ask waits: a second is an age between namespaces.
const askTimeout = time.Second

// askName is what clients ask for.
const askName = "who.nodelab.test"

// Ask asks the server at addr from host h who it is, over "udp" or "tcp", once and from a new port. The error of a
// query that nobody answered is a timeout (os.ErrDeadlineExceeded).
func Ask(h *Host, addr netip.AddrPort, network string) (who string, err error) {
	return AskName(h, addr, network, askName)
}

// AskName is Ask with a name of the caller's own.
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
	return who(answer[:n])
}
