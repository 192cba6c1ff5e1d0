// Package doctor has the command doctor, which reports settings that distort measurements
// or break networking.
package doctor
