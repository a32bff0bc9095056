// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/watch"
)

// centralVersion is the version of the records that dumpCentral makes, which are text: the name of the service, for how
// many ns nobody has told of it, and then addresses, each of the service itself or, with a space and its topology zone,
// of an endpoint.
const centralVersion = 1

var errCentral = errors.New("a record is not as this program writes them")

// dumpCentral gives the addresses of the central resolver's service as they were told last, nothing if they were not.
func dumpCentral(r *running, now time.Time, emit func([]byte) error) error {
	if r.cluster == nil || r.cluster.near == nil {
		return nil
	}
	ready, own, age, known := r.cluster.near.told(now)
	if !known {
		return nil
	}
	records := []string{centralScope(r), strconv.FormatInt(int64(age), 10)}
	for _, s := range ready {
		records = append(records, s.Addr.String()+" "+s.Zone)
	}
	for _, addr := range own {
		records = append(records, addr.String())
	}
	for _, record := range records {
		if err := emit([]byte(record)); err != nil {
			return err
		}
	}
	return nil
}

// centralScope names the service, and the cluster that it is in.
func centralScope(r *running) string {
	c := &r.config.Cluster
	return c.Central.Service.String() + " of " + r.cluster.sourceName(c)
}

// readCentral reads what dumpCentral gave. The function that it returns has the central resolver asked there until the
// source tells; it does nothing if it is another service's, or was last told longer than most ago.
func readCentral(r *running, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	use = func() {}
	lines := make([]string, 0, 8)
	for record := range records {
		lines = append(lines, string(record))
	}
	if len(lines) == 0 || r.cluster == nil || r.cluster.near == nil || lines[0] != centralScope(r) {
		return use, nil
	}
	if len(lines) == 1 {
		return nil, errCentral
	}
	age, err := strconv.ParseUint(lines[1], 10, 62)
	if err != nil {
		return nil, errCentral
	}
	var ready []watch.Server
	var own []netip.AddrPort
	for _, line := range lines[2:] {
		text, zone, endpoint := strings.Cut(line, " ")
		addr, err := netip.ParseAddrPort(text)
		switch {
		case err != nil:
			return nil, errCentral
		case endpoint:
			ready = append(ready, watch.Server{Addr: addr, Zone: zone})
		default:
			own = append(own, addr)
		}
	}
	if time.Duration(age) > most-passed {
		return use, nil
	}
	return func() { r.cluster.near.restore(ready, own, now.Add(-time.Duration(age)-passed)) }, nil
}

// told is what was told last, and for how long nobody has told it to this process: 0 if somebody has.
func (n *neighbours) told(now time.Time) (ready []watch.Server, own []netip.AddrPort, age time.Duration, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.since.IsZero() {
		age = max(0, now.Sub(n.since))
	}
	return slices.Clone(n.ready), slices.Clone(n.own), age, n.known
}

// restore says which endpoints there were, if nobody has told yet.
func (n *neighbours) restore(ready []watch.Server, own []netip.AddrPort, since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known {
		return
	}
	n.known, n.ready, n.own, n.since = true, ready, own, since
	n.setLocked()
}
