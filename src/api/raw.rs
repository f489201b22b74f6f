//! The functions that every supported server has, called without a check each
//! time; and the check that they exist.

use std::os::raw::{c_char, c_int, c_long, c_longlong, c_uint, c_ulonglong, c_void};

pub(crate) use redis_module::raw::*;

/// Defines a function per API function, and `missing`, which names the first
/// that this server does not have.
macro_rules! required {
    ($($name:ident = $symbol:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            /// # Safety
            ///
            /// As for the function of the same name in the server's API.
            #[allow(clippy::too_many_arguments, reason = "the server's own signatures")]
            pub(crate) unsafe fn $name($($arg: $type),*) $(-> $ret)? {
                // SAFETY: `missing` has answered `None` before anything else ran.
                unsafe { $symbol.unwrap_unchecked()($($arg),*) }
            }
        )*

        /// The first function that this server lacks.
        pub(crate) fn missing() -> Option<&'static str> {
            $(
                // SAFETY: written once by the server while the module loads.
                let function = unsafe { $symbol };
                if function.is_none() {
                    return Some(stringify!($symbol));
                }
            )*
            missing_variadic()
        }
    };
}

type Ctx = *mut RedisModuleCtx;
type Str = *mut RedisModuleString;
type Key = *mut RedisModuleKey;
type Blocked = *mut RedisModuleBlockedClient;
pub(crate) type FreeFn = Option<unsafe extern "C" fn(Ctx, *mut c_void)>;

required! {
    create_command = RedisModule_CreateCommand(ctx: Ctx, name: *const c_char, function: RedisModuleCmdFunc, flags: *const c_char, first: c_int, last: c_int, step: c_int) -> c_int;
    is_keys_position_request = RedisModule_IsKeysPositionRequest(ctx: Ctx) -> c_int;
    key_at_pos = RedisModule_KeyAtPos(ctx: Ctx, position: c_int);
    get_command = RedisModule_GetCommand(ctx: Ctx, name: *const c_char) -> *mut RedisModuleCommand;
    set_command_info = RedisModule_SetCommandInfo(command: *mut RedisModuleCommand, info: *const RedisModuleCommandInfo) -> c_int;
    set_module_options = RedisModule_SetModuleOptions(ctx: Ctx, options: c_int);
    wrong_arity = RedisModule_WrongArity(ctx: Ctx) -> c_int;
    reply_long_long = RedisModule_ReplyWithLongLong(ctx: Ctx, number: c_longlong) -> c_int;
    reply_null = RedisModule_ReplyWithNull(ctx: Ctx) -> c_int;
    reply_error = RedisModule_ReplyWithError(ctx: Ctx, error: *const c_char) -> c_int;
    reply_simple_string = RedisModule_ReplyWithSimpleString(ctx: Ctx, text: *const c_char) -> c_int;
    reply_string_buffer = RedisModule_ReplyWithStringBuffer(ctx: Ctx, bytes: *const c_char, len: usize) -> c_int;
    reply_array = RedisModule_ReplyWithArray(ctx: Ctx, len: c_long) -> c_int;
    reply_map = RedisModule_ReplyWithMap(ctx: Ctx, len: c_long) -> c_int;
    selected_db = RedisModule_GetSelectedDb(ctx: Ctx) -> c_int;
    select_db = RedisModule_SelectDb(ctx: Ctx, db: c_int) -> c_int;
    context_flags = RedisModule_GetContextFlags(ctx: Ctx) -> c_int;
    avoid_replica_traffic = RedisModule_AvoidReplicaTraffic() -> c_int;
    client_id = RedisModule_GetClientId(ctx: Ctx) -> c_ulonglong;
    client_info = RedisModule_GetClientInfoById(info: *mut c_void, id: u64) -> c_int;
    current_user_name = RedisModule_GetCurrentUserName(ctx: Ctx) -> Str;
    client_user_name = RedisModule_GetClientUserNameById(ctx: Ctx, id: u64) -> Str;
    user_from_name = RedisModule_GetModuleUserFromUserName(name: Str) -> *mut RedisModuleUser;
    free_user = RedisModule_FreeModuleUser(user: *mut RedisModuleUser);
    acl_check_channel = RedisModule_ACLCheckChannelPermissions(user: *mut RedisModuleUser, channel: Str, usage: c_int) -> c_int;
    string_ptr_len = RedisModule_StringPtrLen(text: *const RedisModuleString, len: *mut usize) -> *const c_char;
    create_string = RedisModule_CreateString(ctx: Ctx, bytes: *const c_char, len: usize) -> Str;
    create_string_from_long_long = RedisModule_CreateStringFromLongLong(ctx: Ctx, number: c_longlong) -> Str;
    free_string = RedisModule_FreeString(ctx: Ctx, text: Str);
    open_key = RedisModule_OpenKey(ctx: Ctx, name: Str, mode: c_int) -> Key;
    close_key = RedisModule_CloseKey(key: Key);
    key_type = RedisModule_KeyType(key: Key) -> c_int;
    value_length = RedisModule_ValueLength(key: Key) -> usize;
    abs_expire = RedisModule_GetAbsExpire(key: Key) -> mstime_t;
    set_abs_expire = RedisModule_SetAbsExpire(key: Key, at: mstime_t) -> c_int;
    delete_key = RedisModule_DeleteKey(key: Key) -> c_int;
    scan_cursor_create = RedisModule_ScanCursorCreate() -> *mut RedisModuleScanCursor;
    scan_cursor_destroy = RedisModule_ScanCursorDestroy(cursor: *mut RedisModuleScanCursor);
    scan_key = RedisModule_ScanKey(key: Key, cursor: *mut RedisModuleScanCursor, callback: RedisModuleScanKeyCB, data: *mut c_void) -> c_int;
    signal_modified_key = RedisModule_SignalModifiedKey(ctx: Ctx, name: Str) -> c_int;
    published_key_events = RedisModule_GetNotifyKeyspaceEvents() -> c_int;
    notify_keyspace_event = RedisModule_NotifyKeyspaceEvent(ctx: Ctx, class: c_int, event: *const c_char, name: Str) -> c_int;
    replicate_verbatim = RedisModule_ReplicateVerbatim(ctx: Ctx) -> c_int;
    publish = RedisModule_PublishMessage(ctx: Ctx, channel: Str, message: Str) -> c_int;
    publish_shard = RedisModule_PublishMessageShard(ctx: Ctx, channel: Str, message: Str) -> c_int;
    block_client = RedisModule_BlockClient(ctx: Ctx, reply: RedisModuleCmdFunc, timeout: RedisModuleCmdFunc, free: FreeFn, timeout_ms: c_longlong) -> Blocked;
    set_disconnect_callback = RedisModule_SetDisconnectCallback(client: Blocked, callback: RedisModuleDisconnectFunc);
    unblock_client = RedisModule_UnblockClient(client: Blocked, data: *mut c_void) -> c_int;
    blocked_client_handle = RedisModule_GetBlockedClientHandle(ctx: Ctx) -> Blocked;
    blocked_client_data = RedisModule_GetBlockedClientPrivateData(ctx: Ctx) -> *mut c_void;
    blocked_client_disconnected = RedisModule_BlockedClientDisconnected(ctx: Ctx) -> c_int;
    create_timer = RedisModule_CreateTimer(ctx: Ctx, period: mstime_t, callback: RedisModuleTimerProc, data: *mut c_void) -> RedisModuleTimerID;
    stop_timer = RedisModule_StopTimer(ctx: Ctx, id: RedisModuleTimerID, data: *mut *mut c_void) -> c_int;
    event_loop_add_one_shot = RedisModule_EventLoopAddOneShot(function: RedisModuleEventLoopOneShotFunc, data: *mut c_void) -> c_int;
    subscribe_to_keyspace_events = RedisModule_SubscribeToKeyspaceEvents(ctx: Ctx, classes: c_int, callback: RedisModuleNotificationFunc) -> c_int;
    subscribe_to_server_event = RedisModule_SubscribeToServerEvent(ctx: Ctx, event: RedisModuleEvent, callback: RedisModuleEventCallback) -> c_int;
    server_info = RedisModule_GetServerInfo(ctx: Ctx, section: *const c_char) -> *mut RedisModuleServerInfoData;
    server_info_number = RedisModule_ServerInfoGetFieldUnsigned(info: *mut RedisModuleServerInfoData, field: *const c_char, failed: *mut c_int) -> c_ulonglong;
    server_info_text = RedisModule_ServerInfoGetFieldC(info: *mut RedisModuleServerInfoData, field: *const c_char) -> *const c_char;
    free_server_info = RedisModule_FreeServerInfo(ctx: Ctx, info: *mut RedisModuleServerInfoData);
    call_reply_length = RedisModule_CallReplyLength(reply: *mut RedisModuleCallReply) -> usize;
    call_reply_array_element = RedisModule_CallReplyArrayElement(reply: *mut RedisModuleCallReply, index: usize) -> *mut RedisModuleCallReply;
    call_reply_string_ptr = RedisModule_CallReplyStringPtr(reply: *mut RedisModuleCallReply, len: *mut usize) -> *const c_char;
    call_reply_integer = RedisModule_CallReplyInteger(reply: *mut RedisModuleCallReply) -> c_longlong;
    register_info_func = RedisModule_RegisterInfoFunc(ctx: Ctx, callback: RedisModuleInfoFunc) -> c_int;
    info_add_section = RedisModule_InfoAddSection(info: *mut RedisModuleInfoCtx, name: *const c_char) -> c_int;
    info_add_number = RedisModule_InfoAddFieldULongLong(info: *mut RedisModuleInfoCtx, name: *const c_char, value: c_ulonglong) -> c_int;
    info_add_text = RedisModule_InfoAddFieldCString(info: *mut RedisModuleInfoCtx, name: *const c_char, value: *const c_char) -> c_int;
    info_begin_dict = RedisModule_InfoBeginDictField(info: *mut RedisModuleInfoCtx, name: *const c_char) -> c_int;
    info_end_dict = RedisModule_InfoEndDictField(info: *mut RedisModuleInfoCtx) -> c_int;
    register_numeric_config = RedisModule_RegisterNumericConfig(ctx: Ctx, name: *const c_char, default: c_longlong, flags: c_uint, min: c_longlong, max: c_longlong, get: RedisModuleConfigGetNumericFunc, set: RedisModuleConfigSetNumericFunc, apply: RedisModuleConfigApplyFunc, data: *mut c_void) -> c_int;
    register_bool_config = RedisModule_RegisterBoolConfig(ctx: Ctx, name: *const c_char, default: c_int, flags: c_uint, get: RedisModuleConfigGetBoolFunc, set: RedisModuleConfigSetBoolFunc, apply: RedisModuleConfigApplyFunc, data: *mut c_void) -> c_int;
    register_string_config = RedisModule_RegisterStringConfig(ctx: Ctx, name: *const c_char, default: *const c_char, flags: c_uint, get: RedisModuleConfigGetStringFunc, set: RedisModuleConfigSetStringFunc, apply: RedisModuleConfigApplyFunc, data: *mut c_void) -> c_int;
    register_enum_config = RedisModule_RegisterEnumConfig(ctx: Ctx, name: *const c_char, default: c_int, flags: c_uint, names: *mut *const c_char, values: *const c_int, count: c_int, get: RedisModuleConfigGetEnumFunc, set: RedisModuleConfigSetEnumFunc, apply: RedisModuleConfigApplyFunc, data: *mut c_void) -> c_int;
    load_configs = RedisModule_LoadConfigs(ctx: Ctx) -> c_int;
}

/// The variadic functions, which are called where they are needed.
fn missing_variadic() -> Option<&'static str> {
    /// Whether the server has an API function.
    macro_rules! absent {
        ($($symbol:ident),*) => {
            $(
                // SAFETY: written once by the server while the module loads.
                let function = unsafe { $symbol };
                if function.is_none() {
                    return Some(stringify!($symbol));
                }
            )*
        };
    }
    absent!(
        RedisModule_HashGet,
        RedisModule_HashSet,
        RedisModule_Replicate,
        RedisModule_Call,
        RedisModule_FreeCallReply,
        RedisModule_Log
    );
    None
}

/// The server's cached time, which it uses until it does something else, in
/// microseconds; `None` before Redis 7.2, which reads the clock each time.
pub(crate) fn cached_microseconds() -> Option<i64> {
    // SAFETY: written once by the server while the module loads; takes nothing.
    unsafe { RedisModule_CachedMicroseconds.map(|function| function()) }
}

/// Whether the server's handling of `CLIENT UNBLOCK` for modules is fixed.
///
/// Fixed since Redis 7.4 and Valkey 8, which also added this function.
pub(crate) fn has_fixed_unblock() -> bool {
    // SAFETY: written once by the server while the module loads.
    let function = unsafe { RedisModule_AddACLCategory };
    function.is_some()
}
