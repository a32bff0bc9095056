// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"

	"github.com/nodecache/node-cache/pkg/wire"
)

// EDE is the Extended DNS Error (RFC 8914 section 4) that tells a client what
// the failure was.
func (f *Failure) EDE() int {
	switch f.Reason {
	case Network:
		return wire.EDENetworkError
	case Malformed:
		return wire.EDEInvalidData
	case NoUpstream:
		if !errors.Is(f.Err, errNoEndpoint) {
			return wire.EDENotReady
		}
	case Timeout, Rcode:
	}
	return wire.EDENoReachableAuthority
}
