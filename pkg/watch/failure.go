// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

var (
	errSilent      = errors.New("the watch is open, but nothing came for too long")
	errNoAnswer    = errors.New("the server does not answer")
	errListEnded   = errors.New("the server ended the first list before its end")
	errUnconfirmed = errors.New("the server sends no bookmark, or its history was set back")
	errUnrequested = errors.New("the server sends an object that was not asked for")
	errPanic       = errors.New("recovered from a panic")
)

// Reasons that begin KindStats.LastError.
const (
	reasonForbidden    = "forbidden"    // RBAC has no rule for it
	reasonUnauthorized = "unauthorized" // the credentials are not taken
	reasonExpired      = "history lost" // 410: the list is read anew
	reasonBusy         = "busy"         // 429
	reasonSilent       = "frozen"
	reasonUnreadable   = "unreadable" // garbage, a connection that broke, or more than can be read
	reasonUnreachable  = "unreachable"
	reasonInternal     = "internal"
	reasonServer       = "server error"
)

// causeUnreadable is what client-go gives as the cause of an error of its own in reading a watch.
const causeUnreadable = "ClientWatchDecoding"

// reasonOf sorts an error. Two errors of one reason are not news: their texts may differ in a port.
func reasonOf(err error) string {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsForbidden(err):
		return reasonForbidden
	case apierrors.IsUnauthorized(err):
		return reasonUnauthorized
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return reasonExpired
	case apierrors.IsTooManyRequests(err):
		return reasonBusy
	case errors.Is(err, errSilent), errors.Is(err, errUnconfirmed):
		return reasonSilent
	case errors.Is(err, errPanic):
		return reasonInternal
	case apierrors.HasStatusCause(err, causeUnreadable), errors.Is(err, errLongList), errors.Is(err, errUnrequested):
		return reasonUnreadable
	case errors.As(err, &status):
		return reasonServer
	default:
		return reasonUnreachable
	}
}

// listMayHelp says whether a plain list can give what a watch with a first list could not, after so many failures in a row. A
// server that does not know such watches says so with a client error or an internal one, and then a list is the way.
// One that is away, overloaded or refuses is not helped by a second and more costly request.
func listMayHelp(err error, failures int) bool {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), utilnet.IsConnectionRefused(err):
		return false
	case failures >= 3:
		return true // whatever it is, some proxies and servers fail at streams only
	case apierrors.HasStatusCause(err, causeUnreadable), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return false
	default:
		return errors.As(err, &status)
	}
}
