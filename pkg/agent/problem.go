// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
)

// A HintError is an error with what a person can do about it.
type HintError struct {
	Err  error
	Hint string
}

// Error says what went wrong and why.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap is the error itself.
func (e *HintError) Unwrap() error { return e.Err }

// listenProblem adds what a person can do about a socket that cannot be opened.
func listenProblem(err error, port uint16) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "another program has the port; `ss -lnptu` names it, and listen.port or listen.addresses chooses another"
	case errors.Is(err, syscall.EACCES) && port < 1024:
		hint = "ports below 1024 need root or the capability NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = "something on this machine forbids the socket: look at seccomp, LSM and cgroup rules"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "no interface of this machine has the address; `ip address` lists those it has"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		hint = "this machine does not speak that IP family"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		hint = "raise the limit of open files (ulimit -n)"
	default:
		return err
	}
	return &HintError{Err: err, Hint: hint}
}

// adminProblem adds what a person can do about an admin server that cannot listen.
func adminProblem(err error, cfg config.Admin) error {
	switch {
	case cfg.Socket == "":
	case errors.Is(err, admin.ErrSocketTaken):
		return &HintError{Err: err, Hint: "each agent needs a path of its own: another one has this admin.socket"}
	case errors.Is(err, fs.ErrNotExist):
		return &HintError{Err: err, Hint: "admin.socket is a file in a folder that exists: make the folder, or choose another path"}
	case errors.Is(err, admin.ErrNoSocket):
		return &HintError{Err: err, Hint: "admin.socket is the path of a file that the agent makes: choose another one, or take that file away"}
	}
	return listenProblem(err, cfg.Address.Port())
}
