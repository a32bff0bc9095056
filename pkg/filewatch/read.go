// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrUntrusted is the error of a file or folder whose content another user may control.
var ErrUntrusted = errors.New("it belongs to another user, or others may write to it")

var errNotRegular = errors.New("not a regular file")

// ReadFile reads a regular file of at most limit bytes, which is a multiple of 1 KiB. It never blocks on a pipe or a
// device. Without an error the data is not nil; every error is a [*fs.PathError].
func ReadFile(path string, limit int64) ([]byte, error) {
	return read(path, limit, func(fs.FileInfo) error { return nil })
}

// ReadTrusted reads a file as [ReadFile] does. The file must pass [CheckOwner].
func ReadTrusted(path string, limit int64) ([]byte, error) { return read(path, limit, CheckOwner) }

func read(path string, limit int64, check func(fs.FileInfo) error) ([]byte, error) {
	f, err := open(path, check)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: tooLarge(limit)}
	}
	return data, nil
}

// Open opens a regular file of at most limit bytes, which is a multiple of 1 KiB. Like [ReadFile] it never blocks, and every error is a
// [*fs.PathError].
func Open(path string, limit int64) (io.ReadCloser, error) {
	return open(path, func(info fs.FileInfo) error {
		if info.Size() > limit {
			return tooLarge(limit)
		}
		return nil
	})
}

func tooLarge(limit int64) error { return fmt.Errorf("larger than %s", size(limit)) }

// open opens a regular file whose info passes check.
func open(path string, check func(fs.FileInfo) error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = syscall.EISDIR
	case !info.Mode().IsRegular():
		err = errNotRegular
	default:
		err = check(info)
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close() // read only
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, err
	}
	return nil, &fs.PathError{Op: "read", Path: path, Err: err}
}

func size(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
