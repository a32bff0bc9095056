// SPDX-License-Identifier: Apache-2.0

package push

import (
	"slices"
	"strings"
)

// An index has the subscribed names, each once for all sessions, and leads from an owner to its names.
type index struct {
	names         map[string]*name
	owners        map[string]*owner
	aliases       map[*name][]*owner // the owners of what names lead to, as aliases
	subscriptions int
	bytes         int64 // see nameCost
}

func (x *index) init() {
	x.names, x.owners, x.aliases = map[string]*name{}, map[string]*owner{}, map[*name][]*owner{}
}

// A name has a subscriber.
type name struct {
	wire        string // canonical wire form; its owner's key is a part of it
	owner       *owner
	subscribers []subscriber
}

// A subscriber is a subscription of a session, by its ID.
type subscriber struct {
	session *Session
	id      uint16
}

// has reports whether the session has subscribed to the name.
func (n *name) has(session *Session) bool {
	return slices.ContainsFunc(n.subscribers, func(s subscriber) bool { return s.session == session })
}

// An owner has a subscribed name.
type owner struct {
	key   string
	names []*name
}

// Estimates of the memory in bytes, measured by TestMemory, with what the maps hold beside it.
const (
	subscriptionCost = 72
	nameCost         = 224
)

// cost returns the memory of one more subscription to a name.
func (x *index) cost(wire string) int64 {
	if x.names[wire] != nil {
		return subscriptionCost
	}
	return subscriptionCost + nameCost + int64(len(wire))
}

// add adds a subscription.
func (x *index) add(wire string, ownerLen int, s subscriber) *name {
	x.bytes += x.cost(wire)
	n := x.names[wire]
	if n == nil {
		n = &name{wire: wire, owner: x.ownerOf(wire[len(wire)-ownerLen:])}
		n.owner.names = append(n.owner.names, n)
		x.names[wire] = n
	}
	n.subscribers = append(n.subscribers, s)
	x.subscriptions++
	return n
}

func (x *index) ownerOf(key string) *owner {
	o := x.owners[key]
	if o == nil {
		o = &owner{key: key}
		x.owners[key] = o
	}
	return o
}

// remove removes a subscription, and what has no subscriber any more.
func (x *index) remove(n *name, s subscriber) {
	n.subscribers = without(n.subscribers, s)
	x.subscriptions--
	if len(n.subscribers) == 0 {
		x.follow(n, nil)
		delete(x.names, n.wire)
		x.detach(n.owner, n)
	}
	x.bytes -= x.cost(n.wire)
}

func (x *index) detach(o *owner, n *name) {
	if o.names = without(o.names, n); len(o.names) == 0 {
		delete(x.owners, o.key)
	}
}

// follow makes the name depend on the owners of what it leads to, as an alias, in place of those before.
func (x *index) follow(n *name, keys []string) {
	for _, o := range x.aliases[n] {
		x.detach(o, n)
	}
	delete(x.aliases, n)
	for _, key := range keys {
		o := x.ownerOf(key)
		o.names = append(o.names, n)
		x.aliases[n] = append(x.aliases[n], o)
	}
}

// without removes one v of the list. The list is shorter in memory too, if much of it is free.
func without[T comparable](list []T, v T) []T {
	i, last := slices.Index(list, v), len(list)-1
	if i < 0 {
		return list
	}
	list[i] = list[last]
	clear(list[last:])
	list = list[:last]
	if last < cap(list)/4 {
		list = slices.Clip(slices.Clone(list))
	}
	return list
}

// eachChanged calls do with each name of the changed owners, of all owners with all. The change of a namespace changes the names in it
// too, if a selector chooses the namespaces.
func (x *index) eachChanged(changed map[string]struct{}, all bool, do func(*name)) {
	if all {
		for _, n := range x.names {
			do(n)
		}
		return
	}
	var spaces []string
	for key := range changed {
		if o := x.owners[key]; o != nil {
			o.each(do)
		}
		if isNamespace(key) {
			spaces = append(spaces, key)
		}
	}
	if len(spaces) == 0 {
		return
	}
	for key, o := range x.owners {
		if slices.ContainsFunc(spaces, func(space string) bool { return len(key) > len(space) && strings.HasSuffix(key, space) }) {
			o.each(do)
		}
	}
}

func (o *owner) each(do func(*name)) {
	for _, n := range o.names {
		do(n)
	}
}

// isNamespace reports whether an owner is <ns>.svc.<domain>.
func isNamespace(owner string) bool {
	return len(owner) > 0 && strings.HasPrefix(owner[min(len(owner), 1+int(owner[0])):], "\x03svc")
}
