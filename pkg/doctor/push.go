// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// Push is what the status page of the agent says of push.
type Push struct {
	Session *subscribe.Stats // with its central resolver; nil: cluster.central.push is off
	Served  *push.Stats      // sessions of its clients; nil: push.clients is empty
	Err     error            // why both are missing although the configuration has one of them
}

// checkPush checks whether a server reports changes to this agent, and whether clients can subscribe to this one.
func checkPush(e *checker) {
	if e.Push.Err != nil {
		e.add("push", unknown(e.Push.Err, "see `node-cache status`"))
	}
	if s := e.Push.Session; s != nil {
		e.add("push",
			row{s.Server != "", OK, fmt.Sprintf("session with %s since %s, %s", s.Server, s.Since.UTC().Format(time.RFC3339), count(s.Names, "name", "names")), ""},
			row{s.Idle, OK, "no session: no name is asked for", ""},
			row{s.Why == subscribe.NoServer, Warn, "no session: " + s.Why, "if `node-cache status` names no server that is down, give the Service cluster.central.service a ready endpoint, or set cluster.central.addresses"},
			row{
				strings.HasSuffix(s.Why, subscribe.NoPush), Warn, "no session: " + s.Why,
				"add this node's address to push.clients of the resolver; if it is another DNS server, such as CoreDNS, set cluster.central.push: off",
			},
			row{true, Warn, "no session: " + s.Why, "let this node connect to the central resolver over TCP; until then answers live by their TTL"})
	}
	if s := e.Push.Served; s != nil {
		memory := s.Refused.Memory + s.Ended.Memory
		e.add("subscribers",
			row{
				memory > 0, Warn, fmt.Sprintf("for lack of memory since the start: %d subscriptions refused, %d sessions ended", s.Refused.Memory, s.Ended.Memory),
				"raise the memory limit of the resolver's container, or its replicas",
			},
			row{
				s.Refused.Count > 0, Warn, fmt.Sprintf("%d subscriptions refused since the start: their session has %d", s.Refused.Count, push.MaxSubscriptions),
				"find the client that is no node-cache: an agent has 8,192 at most",
			},
			row{true, OK, fmt.Sprintf("%s, %s", count(s.Sessions, "session", "sessions"), count(s.Subscriptions, "subscription", "subscriptions")), ""})
	}
}
