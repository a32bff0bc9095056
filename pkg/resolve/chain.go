// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A place is where in its section a record belongs: at an alias, by number, or
// one of these.
type place uint8

const (
	last    place = 254 // the data, and everything behind the answer section
	nowhere place = 255
)

// A chain is how an answer gets from the name that was asked for to the data:
// over CNAME records, each of which a DNAME record may have made.
type chain struct {
	m       *wire.Message
	answers int     // records of the answer section, which come first
	names   []int   // offsets of the name that was asked for and of the target of each alias
	places  []place // of the records, by index
	aliases []int   // indices of alias records
}

// follow finds the chain in m, in whatever order its records stand, and gives the
// alias records of it their places: an even one to a DNAME record, the next to
// the CNAME record that follows from it.
func (c *chain) follow(m *wire.Message) error {
	c.m, c.names = m, append(c.names[:0], wire.QuestionNameOffset)
	c.places = slices.Grow(c.places[:0], len(m.Records))[:len(m.Records)]
	if err := c.findAliases(); err != nil {
		return err
	}
	for at := place(0); len(c.aliases) > 0; at += 2 {
		name, final := c.last(), m.QuestionType() == wire.TypeCNAME
		to := at + 1
		if final { // the alias is what was asked for, not a way there
			to = last
		}
		alias := c.take(to, func(r wire.Record) bool { return r.Type == wire.TypeCNAME && m.SameName(name, int(r.Owner)) })
		if alias < 0 {
			return nil
		}
		c.take(at, func(r wire.Record) bool {
			return r.Type == wire.TypeDNAME && m.Within(name, int(r.Owner)) && !m.SameName(name, int(r.Owner))
		})
		if final {
			return nil
		}
		if len(c.names) > maxLinks {
			return errExcess
		}
		c.names = append(c.names, m.Records[alias].Data())
	}
	return nil
}

// findAliases counts the records of the answer section and lists the aliases
// among them. Nothing has a place yet.
func (c *chain) findAliases() error {
	c.aliases, c.answers = c.aliases[:0], 0
	signed := 0
	for i, r := range c.m.Records {
		c.places[i] = nowhere
		if r.Section != wire.Answer {
			continue
		}
		c.answers++
		switch {
		case r.Class != wire.ClassIN:
		case isAlias(r.Type):
			c.aliases = append(c.aliases, i)
		case r.Type == wire.TypeRRSIG && isAlias(c.m.TypeCovered(r)):
			signed++
		}
	}
	if len(c.aliases)+signed > maxAliases {
		return errExcess
	}
	return nil
}

func isAlias(rrtype uint16) bool { return rrtype == wire.TypeCNAME || rrtype == wire.TypeDNAME }

// take gives the first alias record that fits the place, and returns its index,
// or -1.
func (c *chain) take(at place, fits func(wire.Record) bool) int {
	for n, i := range c.aliases {
		if fits(c.m.Records[i]) {
			c.places[i] = at
			c.aliases = slices.Delete(c.aliases, n, n+1)
			return i
		}
	}
	return -1
}

// last is the offset of the chain's last name.
func (c *chain) last() int { return c.names[len(c.names)-1] }

// isIn tells whether a name of the chain is in the zone, of which the offset of
// the name is given.
func (c *chain) isIn(zone int) bool {
	for _, name := range slices.Backward(c.names) {
		if c.m.Within(name, zone) {
			return true
		}
	}
	return false
}

// placeAnswer gives the records of the answer section that are no aliases their
// places. It returns how many belong nowhere.
func (c *chain) placeAnswer() (lost int) {
	want, end := c.m.QuestionType(), c.last()
	for i, r := range c.m.Records[:c.answers] {
		switch {
		case c.places[i] != nowhere:
			continue
		case r.Class != wire.ClassIN:
		case r.Type == want && c.m.SameName(int(r.Owner), end):
			c.places[i] = last
		case r.Type == wire.TypeRRSIG:
			c.places[i] = c.placeSignature(r, want, end)
		}
		if c.places[i] == nowhere {
			lost++
		}
	}
	return lost
}

// placeSignature is the place of r, an RRSIG record: that of what it signs.
func (c *chain) placeSignature(r wire.Record, want uint16, end int) place {
	covered := c.m.TypeCovered(r)
	if covered == want && c.m.SameName(int(r.Owner), end) {
		return last
	}
	if !isAlias(covered) {
		return nowhere
	}
	for i, signed := range c.m.Records[:c.answers] {
		at := c.places[i]
		if at < last && signed.Type == covered && c.m.SameName(int(r.Owner), int(signed.Owner)) {
			return at
		}
	}
	return nowhere
}

// inOrder tells whether every alias stands before what it leads to. Signatures
// may stand anywhere.
func (c *chain) inOrder() bool {
	before := place(0)
	for i, r := range c.m.Records[:c.answers] {
		at := c.places[i]
		if at == nowhere || r.Type == wire.TypeRRSIG {
			continue
		}
		if at < before {
			return false
		}
		before = at
	}
	return true
}
