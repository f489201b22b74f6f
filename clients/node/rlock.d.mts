export * from './rlock.js';
